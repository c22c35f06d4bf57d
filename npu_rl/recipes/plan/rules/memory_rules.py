"""Rules on device and host memory in each phase of a step.

What was counted refuses a recipe only in a combination of strategy, offloading and engine that a measured run covers;
elsewhere it is advice, with that reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.memory.engine_memory import SHARE, EngineMemory
from npu_rl.recipes.memory.host_memory import object_store
from npu_rl.recipes.memory.measured_runs import unmeasured
from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName, memory_of
from npu_rl.recipes.memory.memory_parts import Part, estimated, gb, listed, total
from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.key_map import recipe_key_of
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.sizing.plan_inputs import ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

MEMORY_RULES = frozenset(
    f"{name}{tight}"
    for name in (*(phase.rule for phase in PhaseName), "memory-host", "kv-cache-room")
    for tight in ("", "-tight")
)
"""Ids of the rules of this module; each sets by itself whether it is certain."""

_BLOCKS = f"{ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override"
_SPREAD = ("actor.parallel.tensor", "actor.parallel.pipeline", "actor.parallel.expert")
# The recipe's keys that usually make a part smaller, for FSDP (second) where they differ.
_USUAL: Mapping[Part, tuple[tuple[str, ...], ...]] = {
    Part.ACTOR_WEIGHTS: (("offload.parameters", *_SPREAD), ("offload.parameters", "actor.parallel.shard")),
    Part.ACTOR_GRADIENTS: (("offload.parameters", *_SPREAD), ("actor.parallel.shard",)),
    Part.OPTIMIZER: (("offload.optimizer", *_SPREAD), ("offload.optimizer", "actor.parallel.shard")),
    Part.REFERENCE_WEIGHTS: (("offload.reference",),),
    Part.FSDP_UNITS: (("actor.parallel.shard",),),
    Part.ENGINE_WEIGHTS: (("rollout.tensor_parallel",),),
    Part.ENGINE_ACTIVATIONS: (("rollout.max_batched_tokens",),),
    Part.KV_CACHE: (("rollout.memory_share", "rollout.free_cache"),),
    Part.SAMPLING: (("rollout.max_sequences",),),
    Part.HCCL: (("env.HCCL_BUFFSIZE",),),
}
_RECOMPUTE = ("actor.transformer.recompute_granularity", "model.recompute")


def memory_rules(facts: PlanInputs, memory: Memory, machine: Machine) -> Iterator[Rule]:
    """Yield what doesn't fit: phases of a step at their fullest stage, the KV cache, the host.

    Phases that don't fit are reported once, by the fullest. A phase gets advice, `ID-tight`, if it fits by less than
    the error of its estimates, or if it fits unless nearly all sequences have their full length (micro batches packed
    by tokens).

    Args:
        machine: Memory of a device and a host in bytes.
    """
    reason = unmeasured(facts)
    worst = sorted(filter(None, map(memory.worst, PhaseName)), key=lambda phase: -phase.total)
    over = [phase for phase in worst if phase.total > memory.die]
    expected = (memory_of(facts, memory.die, expected=True) if over else None) or memory
    full = [phase for phase in over if (expected.worst(phase.name) or phase).total > memory.die]
    tight = [phase for phase in worst if phase not in full and phase.total + phase.estimated > memory.die]
    for phases, is_tight in ((full, False), (tight, True)):
        if phases:
            yield _phase_rule(facts, phases, memory.die, "" if is_tight else reason, is_tight)
    if memory.engine is not None and memory.engine.share is not None:
        yield from _cache_rules(facts, memory.engine, memory.die, bool(full), reason)
    yield from _host_rules(memory, machine)


def _phase_rule(facts: PlanInputs, phases: list[Phase], die: int, reason: str, tight: bool) -> Rule:
    phase, *others = phases
    figures = f"stage {phase.stage}: {listed(phase.parts)} = {gb(phase.total)}, of {gb(die)}"
    if tight:
        longest = " if all sequences have the full length" if phase.total > die else ""
        figures += f"{longest}, of which {gb(phase.estimated)} are estimates"
    figures += "".join(f"; also {other.name.label} {gb(other.total)}" for other in others)
    name = f"{phase.name.rule}-tight" if tight else phase.name.rule
    figures += f"; {reason}, so it is advice" if reason else ""
    advice = tight or bool(reason)
    return Rule(name, figures, *_usual_fix(facts, phase), advice, certain=False)


def _usual_fix(facts: PlanInputs, phase: Phase) -> tuple[str, tuple[str, ...]]:
    """Return the largest part with the usual keys for it, and the first of them."""
    part, megatron = max(phase.parts, key=lambda one: phase.parts[one]), facts.recipe.megatron
    keys = _USUAL.get(part, (("rollout.memory_share",),))[0 if megatron else -1]
    if part in (Part.ACTIVATIONS, Part.LOGITS):
        recompute = part is Part.ACTIVATIONS and phase.name is PhaseName.UPDATE
        keys = (phase.name.micro_batch_key, *([_RECOMPUTE[0 if megatron else 1]] if recompute else []))
    if part is Part.OPTIMIZER and megatron and facts.mindspeed:
        swap, _ = facts.transformer_keys("swap_optimizer")
        keys = (recipe_key_of(swap) or f"overrides.{swap}", *keys)
    on = {f"offload.{name}" for name, value in facts.recipe.offload if value is True}
    keys = tuple(key for key in keys if key not in on) or ("actor.parallel",)
    fix = f"the largest part is {part}, {gb(phase.parts[part])}; the usual keys for it: {', '.join(keys)}"
    return fix, keys[:1]


def _cache_rules(
    facts: PlanInputs, engine: EngineMemory, die: int, follows: bool, reason: str
) -> Iterator[Rule]:
    """Check that the KV cache has room for every sequence at its full length.

    Args:
        follows: Whether a phase that doesn't fit explains a small cache.
        reason: Why an error is only advice; "" if it is one. A number of blocks that is set is no estimate.
    """
    cache, each = engine.cache, engine.cache.blocks_of_sequence
    if each is None or cache.wanted is None:
        return
    forced = facts.whole(_BLOCKS)
    figures = f"num_gpu_blocks_override {forced}"
    if forced is None:
        left = f" - what training leaves there {gb(engine.left)}" if engine.left else ""
        figures = (
            f"memory_share {engine.share:g} x {gb(die)} - {listed({**engine.own, **engine.profiled})}{left}"
        )
    figures += f" = {gb(cache.size)}: {cache.blocks} blocks of {cache.block} tokens, of {cache.wanted} for "
    figures += f"{cache.sequences} sequences of {cache.length}"
    drops = _drops_preempted(facts, cache.length) and "kv-cache-room" not in facts.switches
    if cache.blocks >= cache.wanted:
        spare = (cache.blocks - cache.wanted) * cache.block * cache.per_token
        uncertain = estimated(engine.profiled) if forced is None else 0
        if drops and spare < uncertain:
            tight = f"{gb(spare)} to spare, and {gb(uncertain)} are estimates; {_DROP_REASON}. {figures}"
            yield _cache_rule(facts, "kv-cache-room-tight", tight, advice=True)
        return
    if engine.left and follows:
        return
    one = cache.blocks >= each
    why = _DROP_REASON if drops else "sequences are preempted and computed again, or wait for room"
    if not one:
        why = f"not one sequence fits {facts.upstream.cite('check_enough_kv_cache_memory', _ENOUGH)}"
    softened = f"; {reason}, so it is advice" if reason and forced is None and (drops or not one) else ""
    yield _cache_rule(
        facts,
        "kv-cache-room",
        f"{figures}: {why}{softened}",
        advice=bool(softened) or (one and not drops),
        certain=not one and engine.room - total(engine.own) < each * cache.block * cache.per_token,
    )


_ENOUGH = Place(
    "vllm/v1/core/kv_cache_utils.py",
    "def check_enough_kv_cache_memory(",
    (*pins.VLLM, *pins.VLLM_0_10, *pins.VLLM_0_18),
)
_DROPS = Place("vllm_ascend/core/scheduler.py", "FINISHED_IGNORED", pins.ANY_ASCEND)
_DROP_REASON = (
    "a preempted sequence may be longer than a step of the Ascend scheduler, which then drops it "
    "(vllm_ascend/core/scheduler.py@v0.9.1rc2, f20869e)"
)


def _cache_rule(facts: PlanInputs, name: str, figures: str, *, advice: bool, certain: bool = False) -> Rule:
    forced = dotted(facts.path(_BLOCKS))
    fix = f"{f'remove {forced}' if forced else 'raise rollout.memory_share'}, or lower rollout.max_sequences"
    keys = (*((_BLOCKS,) if forced else ()), SHARE, f"{ROLLOUT}.max_num_seqs")
    return Rule(name, figures, fix, keys, advice, certain and not advice)


def _drops_preempted(facts: PlanInputs, longest: int | None) -> bool:
    """Return whether preempted sequences may be dropped: whole prompts are scheduled, and some exceed a step."""
    step = facts.whole(f"{ROLLOUT}.max_num_batched_tokens")
    longer = step is not None and longest is not None and step < longest
    return longer and facts.whole_prompts and facts.upstream.has(_DROPS)


def _host_rules(memory: Memory, machine: Machine) -> Iterator[Rule]:
    """Yield advice if a host's memory is short: no published run has measured one."""
    if machine.host is None or not memory.host:
        return
    need, store = total(memory.host), object_store(machine.host)
    if need + store <= machine.host:
        return
    figures = f"{listed(memory.host)} = {gb(need)} a node, of {gb(machine.host)}"
    fix = "spread the recipe over more nodes (cluster.nodes), or offload less"
    if machine.host >= need:
        figures += f", and Ray's object store may take {gb(store)} (30% of the memory, 200 GB at most)"
        fix = f"start Ray with --object-store-memory={(machine.host - need) // 10**9 * 10**9} or less, or offload less"
    yield Rule("memory-host", figures, fix, ("cluster.nodes",), advice=True, certain=False)
