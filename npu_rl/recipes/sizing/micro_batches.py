"""Micro batch sizes on a die for the update, the old log-probs and the reference's log-probs."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.sizing.plan_inputs import ACTOR, REFERENCE, ROLLOUT, PlanInputs

UPDATE = (ACTOR, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size")
OLD_LOG_PROB = (
    ROLLOUT,
    "log_prob_use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu",
    "log_prob_micro_batch_size",
)
REFERENCE_LOG_PROB = (REFERENCE, *OLD_LOG_PROB[1:])


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro batch on a die.

    Attributes:
        tokens: The tokens at once, at most.
        sequences: The sequences; None if the size is given in tokens.
        key: The trainer's key that sets it.
        expected: The tokens if sequences have half of their longest length on average.
    """

    tokens: int
    sequences: int | None
    key: str
    expected: int = 0


def micro_batch(facts: PlanInputs, which: tuple[str, str, str, str]) -> MicroBatch | None:
    """Return the micro batch of a phase, at the longest sequences; None if a size is not set.

    verl packs sequences without padding and divides them over context and sequence parallel ranks
    (verl/workers/actor/{megatron,dp}_actor.py@55e3c5b). A die has no more than its share of the batch.

    Args:
        facts: The inputs of the plan.
        which: UPDATE, OLD_LOG_PROB or REFERENCE_LOG_PROB.
    """
    part, dynamic, most, size = which
    sequences = _sequences(facts, batch=f"{ACTOR}.ppo_mini_batch_size" if which == UPDATE else "")
    longest = facts.length
    if facts.on(f"{part}.{dynamic}"):
        limit, key = facts.whole(f"{part}.{most}"), f"{part}.{most}"
        if limit is None:
            return None
        if not (sequences and longest):
            return MicroBatch(limit, None, key, limit)
        one, share = longest // _sequence_ranks(facts), sequences * longest // _sequence_ranks(facts)
        return MicroBatch(min(limit, share), None, key, min(limit, max(one, share // 2)))
    key = f"{part}.{size}_per_gpu"
    whole = facts.whole(key) or _share_of_total(facts, f"{part}.{size}")
    if not whole or longest is None:
        return None
    count = min(whole, sequences) if sequences else whole
    tokens = count * longest // _sequence_ranks(facts)
    return MicroBatch(tokens, count, key, tokens)


def micro_batches_of_update(facts: PlanInputs, one: MicroBatch) -> int | None:
    """Return the number of micro batches like `one` in a replica's mini batch; None if unknown."""
    sequences = _sequences(facts, batch=f"{ACTOR}.ppo_mini_batch_size")
    if sequences is None:
        return None
    if one.sequences is not None:
        return -(-sequences // one.sequences)
    tokens = sequences * (facts.length or 0) // _sequence_ranks(facts)
    return max(1, -(-tokens // max(1, one.tokens)))


def _sequences(facts: PlanInputs, batch: str) -> int | None:
    """Return the number of sequences of one data-parallel replica in the batch or mini batch under the key `batch`."""
    if facts.replicas is None:
        return None
    total = facts.responses
    if batch:
        prompts, each = facts.whole(batch), facts.whole(f"{ROLLOUT}.n")
        total = prompts * each if prompts and each else None
    return max(1, -(-total // facts.replicas)) if total else None


def _sequence_ranks(facts: PlanInputs) -> int:
    train = facts.layout.train if facts.layout else None
    return max(1, train.context * train.sequence) if train else 1


def _share_of_total(facts: PlanInputs, key: str) -> int | None:
    """Return a replica's share of a micro batch size that is set for all replicas, as in older verl."""
    whole = facts.whole(key)
    return max(1, whole // facts.replicas) if whole and facts.replicas else None
