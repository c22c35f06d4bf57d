"""Rules on the division of a step's responses."""

from __future__ import annotations

import math

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules.pins import AGENT_LOOP, CHUNKS_EVENLY, SERVERS, TRAINER, VERL, servers
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.recipe.key_map import recipe_key_of
from npu_rl.recipes.sizing.micro_batches import OLD_LOG_PROB, REFERENCE_LOG_PROB, UPDATE
from npu_rl.recipes.sizing.plan_inputs import ACTOR, GENERATED, ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_BATCH, _MINI, _EACH = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
_SEQUENCES, _WORKERS = f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.agent.num_workers"
_BYPASS = "algorithm.rollout_correction.bypass_mode"  # the old log-probs are the rollout's
_ENGINE_WORKERS = "verl/workers/engine_workers.py"
# From verl 0.8 on, ReMax's greedy responses are generated together with the sampled ones.
_WITH_BASELINE = Place(
    TRAINER, "DataProto.concat([gen_batch_output, gen_baseline_batch])", ("v0.8.0", "7aed6b2")
)
# Those of verl 0.7 and older, which split a batch unevenly; the trainer v1 of 0.9 fills it up to a multiple.
_OLD_WORKERS = "verl/workers/fsdp_workers.py"


def _generated_word(facts: PlanInputs) -> tuple[str, str]:
    """Return the trainer's and the recipe's key for the prompts of a step that are generated."""
    return (GENERATED, f"overrides.{GENERATED}") if GENERATED in facts.given else (_BATCH, "data.batch")


@rule(
    "responses-per-prompt",
    (
        Place(
            "verl/trainer/ppo/v1/trainer_base.py",
            "actor_global_mini_batch_size *= self.config",
            ("8851219",),
        ),
        Place(
            TRAINER,
            "repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True",
            (*VERL, *SERVERS),
        ),
    ),
)
def _responses_per_prompt(facts: PlanInputs) -> Outcomes:
    each = facts.whole(_EACH)
    if each is not None and each < 1:
        fix = f"set overrides.{_EACH} to 1 or more"
        yield Outcome(False, f"{each} responses of each prompt: must be 1 or more", fix, (_EACH,))


@rule("mini-batch-divisible-by-dp", certain=False, only=("batched",))
def _mini_batch_divisible_by_dp(facts: PlanInputs) -> Outcomes:
    mini, each, copies = facts.whole(_MINI), facts.whole(_EACH) or 1, facts.replicas or 1
    if mini:
        yield Outcome(
            mini * each % copies == 0,
            f"{mini} prompts x {each} responses = {mini * each}, over {copies} data-parallel replicas",
            f"set actor.mini_batch so that actor.mini_batch x rollout.responses is a multiple of {copies}",
            (_MINI,),
        )


@rule(
    "batch-divisible-by-mini-batch",
    servers("verl/utils/tensordict_utils.py", "assert tensordict.batch_size[0] % mini_batch_size == 0"),
    servers(
        _ENGINE_WORKERS, "mini_batch_size_per_gpu = mini_batch_size // self.engine.get_data_parallel_size()"
    ),
    only=("batched",),
)
def _batch_divisible_by_mini_batch(facts: PlanInputs) -> Outcomes:
    prompts, mini = facts.whole(_BATCH) or 0, facts.whole(_MINI)
    if mini and not facts.on("trainer.use_v1") and facts.upstream.text(_OLD_WORKERS) is None:
        yield Outcome(
            prompts % mini == 0,
            f"{prompts} prompts in mini batches of {mini}",
            f"set actor.mini_batch to {math.gcd(prompts, mini)}, or data.batch to a multiple of {mini}",
            (_MINI, _BATCH),
        )


@rule(
    "micro-batch-divides-share",
    servers(
        "verl/workers/engine/utils.py",
        "data size must be divisible by force_group_size * micro_batch_size_per_gpu",
    ),
    only=("batched", "code"),
)
def _micro_batch_divides_share(facts: PlanInputs) -> Outcomes:
    """Check that a replica's share is a multiple of each pass's micro batch size, if that is set in responses."""
    mini, each, copies = facts.whole(_MINI) or 0, facts.whole(_EACH) or 1, facts.replicas or 1
    answers = (facts.whole(_BATCH) or 0) * each
    if facts.on("trainer.use_v1") and mini:  # fills a step up to a multiple of both
        together = math.lcm(mini * each, copies)
        answers = -(-answers // together) * together
    passes = [(UPDATE, mini * each)]
    if not facts.on(_BYPASS):
        passes.append((OLD_LOG_PROB, answers))
    if has_reference(facts):
        passes.append((REFERENCE_LOG_PROB, answers))
    shares = [
        (f"{part}.{size}_per_gpu", total // copies)
        for (part, dynamic, _, size), total in passes
        if total % copies == 0 and not facts.on(f"{part}.{dynamic}")
    ]
    sizes = [(key, share, micro) for key, share in shares if (micro := facts.whole(key) or 0) > 0]
    if sizes:
        key, share, micro = next((one for one in sizes if one[1] % one[2]), sizes[0])
        yield Outcome(
            share % micro == 0,
            f"micro batches of {micro} of a replica's {share} responses",
            f"set {recipe_key_of(key) or f'overrides.{key}'} to {math.gcd(share, micro)}",
            (key,),
        )


@rule(
    "dynamic-batches-agree",
    servers(
        _ENGINE_WORKERS,
        "assert self.config.actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz",
    ),
)
def _dynamic_batches_agree(facts: PlanInputs) -> Outcomes:
    """Check that micro batches are packed by tokens in both passes of the actor or in neither."""
    keys = (f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{ACTOR}.use_dynamic_bsz")
    log_prob, update = (facts.values.value(key) for key in keys)
    if isinstance(update, bool) and isinstance(log_prob, bool):
        yield Outcome(
            update is log_prob,
            f"use_dynamic_bsz {str(update).lower()}, log_prob_use_dynamic_bsz {str(log_prob).lower()}",
            f"set overrides.{keys[0]} to {str(update).lower()}",
            keys,
        )


@rule(
    "generated-batch-is-trained",
    Place(TRAINER, 'self.config.data.get("gen_batch_size"', VERL),
    certain=False,
    only=("batched",),
)
def _generated_batch_is_trained(facts: PlanInputs) -> Outcomes:
    """Yield advice if a step trains on a batch other than data.batch because no filter selects groups.

    For the trainer v1 of verl 0.9 it is only the number of prompts that are read at once.
    """
    prompts, generated = facts.whole(_BATCH), facts.whole(GENERATED)
    chosen = facts.on("algorithm.filter_groups.enable") or facts.on("trainer.use_v1")
    if generated is not None and generated != prompts and not chosen:
        yield Outcome(
            False,
            f"{GENERATED} {generated}, data.batch {prompts}, filter_groups off: all {generated} prompts are trained on",
            f"set overrides.{GENERATED} to {prompts}, or data.batch to {generated}",
            (GENERATED,),
            advice=True,
        )


@rule("batch-divisible-by-rollout-dp", certain=False, only=("batched", "engines", "generated"))
def _batch_divisible_by_rollout_dp(facts: PlanInputs) -> Outcomes:
    answers, engines = facts.generated or 0, facts.engines or 1
    key, word = _generated_word(facts)
    if not facts.server_mode:
        share = f" = {answers // engines}" if answers % engines == 0 else ""
        yield Outcome(
            answers % engines == 0,
            f"{answers} responses over {engines} engines{share}",
            f"set {word} so that {word} x rollout.responses is a multiple of {engines}",
            (key, _EACH),
        )


@rule(
    "batch-divisible-by-agent-workers",
    Place(AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))", CHUNKS_EVENLY),
    Place("verl/protocol.py", "only support equal chunk.", CHUNKS_EVENLY),
    only=("batched", "engines", "generated", "server_mode"),
)
def _batch_divisible_by_agent_workers(facts: PlanInputs) -> Outcomes:
    """Check that a step's responses divide evenly among the workers that send them to vLLM's servers.

    verl's newer trainer (trainer.use_v1) splits unevenly, an own manager (agent_loop_manager_class) as it likes.
    """
    workers = facts.whole(_WORKERS)
    own = facts.values.value(f"{ROLLOUT}.agent.agent_loop_manager_class")
    padded = facts.env.get("VERL_AUTO_PADDING", "").upper() in ("TRUE", "1")
    if not workers or workers < 1 or own or padded or facts.on("trainer.use_v1"):
        return
    (key, word), answers, each = _generated_word(facts), facts.generated or 0, "rollout.responses"
    prompts = answers // (facts.whole(_EACH) or 1)
    if facts.values.value("algorithm.adv_estimator") == "remax" and facts.upstream.has(_WITH_BASELINE):
        answers, each = answers + prompts, "(rollout.responses + 1)"
    fewer = math.gcd(answers, workers)
    share = f" = {answers // workers}" if answers % workers == 0 else ""
    yield Outcome(
        answers % workers == 0,
        f"{answers} responses over {workers} agent loop workers{share}",
        f"set {word} so that {word} x {each} is a multiple of {workers}, or overrides.{_WORKERS} to {fewer}",
        (key, _EACH, _WORKERS),
    )


@rule(
    "agent-loop-workers",
    servers(AGENT_LOOP, "for i in range(num_workers):"),
    servers(AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))"),
    only=("server_mode",),
)
def _agent_loop_workers(facts: PlanInputs) -> Outcomes:
    """Check that there are workers for a step's prompts, unless a user's manager creates the workers."""
    workers = facts.whole(_WORKERS)
    own = facts.values.value(f"{ROLLOUT}.agent.agent_loop_manager_class")
    if workers is not None and workers < 1 and not own:
        fix = f"set overrides.{_WORKERS} to 1 or more"
        yield Outcome(False, f"{workers} agent loop workers", fix, (_WORKERS,))


@rule("max-sequences-one-wave", certain=False, only=("batched", "engines", "generated"))
def _max_sequences_one_wave(facts: PlanInputs) -> Outcomes:
    share, sequences = (facts.generated or 0) // (facts.engines or 1), facts.whole(_SEQUENCES)
    if sequences:
        yield Outcome(
            sequences >= share,
            f"max_sequences {sequences}, {share} responses an engine",
            f"set rollout.max_sequences to {share}: fewer are decoded in more than one wave",
            (_SEQUENCES,),
            advice=True,
        )
