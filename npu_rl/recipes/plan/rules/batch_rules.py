"""Rules on the division of a step's responses."""

from __future__ import annotations

import math

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.pins import servers
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule
from npu_rl.recipes.recipe.key_map import recipe_key_of
from npu_rl.recipes.sizing.micro_batches import OLD_LOG_PROB, REFERENCE_LOG_PROB, UPDATE
from npu_rl.recipes.sizing.plan_inputs import ACTOR, GENERATED, ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_BATCH, _MINI, _EACH = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
_WORKERS, _MANAGER = f"{ROLLOUT}.agent.num_workers", f"{ROLLOUT}.agent.agent_loop_manager_class"
_V1 = "trainer.use_v1"
_BYPASS = "algorithm.rollout_correction.bypass_mode"  # the old log-probs are the rollout's
# From verl 0.8 on, ReMax's greedy responses are generated together with the sampled ones.
_WITH_BASELINE = Place(
    pins.TRAINER, "DataProto.concat([gen_batch_output, gen_baseline_batch])", pins.CHUNKS_EVENLY
)
# Of verl 0.7 and older, which split a batch unevenly; the trainer v1 of 0.9 fills it up to a multiple.
_OLD_WORKERS = "verl/workers/fsdp_workers.py"
_REPEATS = "repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True"


def _generated_word(facts: PlanInputs) -> tuple[str, str]:
    """Return the trainer's and the recipe's key for the prompts of a step that are generated."""
    return (GENERATED, f"overrides.{GENERATED}") if GENERATED in facts.given else (_BATCH, "data.batch")


@rule(Place(pins.TRAINER, _REPEATS, (*pins.VERL, *pins.SERVERS)))
def _responses_per_prompt(facts: PlanInputs) -> Broken:
    if (each := facts.whole(_EACH)) is not None and each < 1:
        yield broken(f"{each} responses of each prompt", f"set overrides.{_EACH} to 1 or more", _EACH)


@rule(certain=False)
def _mini_batch_divisible_by_dp(facts: PlanInputs) -> Broken:
    mini, each, replicas = facts.whole(_MINI), facts.whole(_EACH) or 1, facts.replicas or 1
    if facts.batched and mini and mini * each % replicas:
        figures = f"{mini} prompts x {each} responses = {mini * each}, over {replicas} data-parallel replicas"
        fix = f"set actor.mini_batch so that actor.mini_batch x rollout.responses is a multiple of {replicas}"
        yield broken(figures, fix, _MINI)


@rule(
    servers("verl/utils/tensordict_utils.py", "assert tensordict.batch_size[0] % mini_batch_size == 0"),
    servers(pins.ENGINE_WORKERS, "mini_batch_size_per_gpu = mini_batch_size // self.engine"),
)
def _batch_divisible_by_mini_batch(facts: PlanInputs) -> Broken:
    prompts, mini = facts.whole(_BATCH) or 0, facts.whole(_MINI)
    even = facts.batched and not facts.on(_V1) and facts.upstream.text(_OLD_WORKERS) is None
    if even and mini and prompts % mini:
        fix = f"set actor.mini_batch to {math.gcd(prompts, mini)}, or data.batch to a multiple of {mini}"
        yield broken(f"{prompts} prompts in mini batches of {mini}", fix, _MINI, _BATCH)


@rule(servers("verl/workers/engine/utils.py", "divisible by force_group_size * micro"))
def _micro_batch_divides_share(facts: PlanInputs) -> Broken:
    """Check that a replica's share is a multiple of each pass's micro batch size, if that is set in responses."""
    mini, each, replicas = facts.whole(_MINI) or 0, facts.whole(_EACH) or 1, facts.replicas or 1
    responses = (facts.whole(_BATCH) or 0) * each
    if facts.on(_V1) and mini:  # fills a step up to a multiple of both
        together = math.lcm(mini * each, replicas)
        responses = -(-responses // together) * together
    passes = [(UPDATE, mini * each)]
    passes += [] if facts.on(_BYPASS) else [(OLD_LOG_PROB, responses)]
    passes += [(REFERENCE_LOG_PROB, responses)] if has_reference(facts) else []
    for (part, dynamic, _, size), total in passes if facts.batched and facts.code else []:
        key, share = f"{part}.{size}_per_gpu", total // replicas
        micro = facts.whole(key) or 0
        if micro > 0 and total % replicas == 0 and share % micro and not facts.on(f"{part}.{dynamic}"):
            fix = f"set {recipe_key_of(key) or f'overrides.{key}'} to {math.gcd(share, micro)}"
            yield broken(f"micro batches of {micro} of a replica's {share} responses", fix, key)


@rule(servers(pins.ENGINE_WORKERS, "assert self.config.actor.use_dynamic_bsz == self.config.rollout"))
def _dynamic_batches_agree(facts: PlanInputs) -> Broken:
    """Check that micro batches are packed by tokens in both passes of the actor or in neither."""
    keys = (f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{ACTOR}.use_dynamic_bsz")
    log_prob, update = (facts.values.value(key) for key in keys)
    if isinstance(update, bool) and isinstance(log_prob, bool) and update is not log_prob:
        figures = f"use_dynamic_bsz {str(update).lower()}, log_prob_use_dynamic_bsz {str(log_prob).lower()}"
        yield broken(figures, f"set overrides.{keys[0]} to {str(update).lower()}", *keys)


@rule(Place(pins.TRAINER, 'self.config.data.get("gen_batch_size"', pins.VERL))
def _generated_batch_is_trained(facts: PlanInputs) -> Broken:
    """Advise if a step trains on a batch other than data.batch because no filter selects groups.

    For the trainer v1 of verl 0.9 it is only the number of prompts that are read at once.
    """
    prompts, generated = facts.whole(_BATCH), facts.whole(GENERATED)
    chosen = facts.on("algorithm.filter_groups.enable") or facts.on(_V1)
    if facts.batched and generated is not None and generated != prompts and not chosen:
        figures = (
            f"{GENERATED} {generated}, data.batch {prompts}, filter_groups off: all prompts are trained on"
        )
        fix = f"set overrides.{GENERATED} to {prompts}, or data.batch to {generated}"
        yield broken(figures, fix, GENERATED, advice=True)


@rule(certain=False)
def _batch_divisible_by_rollout_dp(facts: PlanInputs) -> Broken:
    responses, engines = facts.generated or 0, facts.engines or 1
    if facts.batched and not facts.server_mode and responses % engines:
        key, word = _generated_word(facts)
        fix = f"set {word} so that {word} x rollout.responses is a multiple of {engines}"
        yield broken(f"{responses} responses over {engines} engines", fix, key, _EACH)


@rule(
    Place(pins.AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))", pins.CHUNKS_EVENLY),
    Place("verl/protocol.py", "only support equal chunk.", pins.CHUNKS_EVENLY),
)
def _batch_divisible_by_agent_workers(facts: PlanInputs) -> Broken:
    """Check that a step's responses divide evenly among the workers that send them to vLLM's servers.

    verl's newer trainer (trainer.use_v1) splits unevenly, an own manager (agent_loop_manager_class) as it likes.
    """
    workers, padded = (
        facts.whole(_WORKERS) or 0,
        facts.env.get("VERL_AUTO_PADDING", "").upper() in ("TRUE", "1"),
    )
    evenly = (
        facts.batched and facts.server_mode and not (facts.values.value(_MANAGER) or padded or facts.on(_V1))
    )
    responses, each = facts.generated or 0, "rollout.responses"
    if facts.values.value("algorithm.adv_estimator") == "remax" and facts.upstream.has(_WITH_BASELINE):
        responses, each = responses + responses // (facts.whole(_EACH) or 1), "(rollout.responses + 1)"
    if evenly and workers > 0 and responses % workers:
        key, word = _generated_word(facts)
        fix = f"set {word} so that {word} x {each} is a multiple of {workers}, or overrides.{_WORKERS} to "
        figures = f"{responses} responses over {workers} agent loop workers"
        yield broken(figures, f"{fix}{math.gcd(responses, workers)}", key, _EACH, _WORKERS)
