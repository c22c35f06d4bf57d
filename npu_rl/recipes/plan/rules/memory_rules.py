"""Rules on device and host memory in each phase of a step, with changes that make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npu_rl.recipes.memory.engine_memory import SHARE, EngineMemory
from npu_rl.recipes.memory.host_memory import object_store
from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName, memory_of
from npu_rl.recipes.memory.memory_fixes import (
    BLOCKS,
    BUFFER,
    Fix,
    common_fix,
    find_cache_fixes,
    find_phase_fixes,
)
from npu_rl.recipes.memory.memory_parts import estimated, gb, listed, total
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.sizing.plan_inputs import ROLLOUT, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_CACHE_ROOM = "kv-cache-room"
_SEQUENCES = f"{ROLLOUT}.max_num_seqs"


def memory_rules(facts: PlanInputs, memory: Memory, machine: Machine) -> Iterator[Rule]:
    """Yield the rules on each phase of a step at its fullest stage, on the KV cache, and on the host.

    A phase gets advice, `ID-tight`, if it fits by less than the error of its estimates, or if it fits unless nearly
    all sequences have their full length (micro batches packed by tokens). Phases that the same change makes fit are
    reported once, by the fullest; the others are skipped.

    Args:
        machine: Memory of a device and a host in bytes.
    """
    worst = [phase for phase in map(memory.worst, PhaseName) if phase is not None]
    for phase in worst:
        if phase.total <= memory.die:
            yield Rule(phase.name.rule, True, _figures(phase, memory.die))
    over = [phase for phase in worst if phase.total > memory.die]
    expected = (memory_of(facts, memory.die, expected=True) if over else None) or memory
    full = [phase for phase in over if (expected.worst(phase.name) or phase).total > memory.die]
    phase_rules = list(_phase_rules(facts, memory, full, tight=False))
    tight = [phase for phase in worst if phase not in full and phase.total + phase.estimated > memory.die]
    phase_rules += _phase_rules(facts, memory, tight, tight=True)
    yield from phase_rules
    if memory.engine is not None and memory.engine.share is not None:
        cache_rules = _cache_rules(facts, memory, memory.engine, follows=full[0].name.rule if full else "")
        yield from (_skip_same_fix(rule, phase_rules) for rule in cache_rules)
    yield from _host_rules(memory, machine)


def _skip_same_fix(rule: Rule, phase_rules: list[Rule]) -> Rule:
    """Mark the KV cache rule as skipped if a phase needs the same change of HCCL's buffers."""
    same = f"set env.{BUFFER} to "
    for other in phase_rules:
        both = not (rule.ok or other.ok) and rule.fix.startswith(same) and other.fix.startswith(same)
        if both and (rule.advice or not other.advice):
            return replace(rule, ok=True, skipped=f"follows from {other.id}")
    return rule


def _phase_rules(facts: PlanInputs, memory: Memory, phases: list[Phase], *, tight: bool) -> Iterator[Rule]:
    """Yield one rule for all phases that the same change fixes, with the id of the fullest phase."""
    room = memory.die

    def enough(after: Phase) -> bool:
        return after.total + (after.estimated if tight else 0) <= room

    helps = {phase.name: find_phase_fixes(facts, memory, phase.name, enough) for phase in phases}
    left = sorted(phases, key=lambda phase: -phase.total)
    while left:
        fullest = left[0]
        group = [fullest]
        for phase in left[1:]:
            if common_fix([helps[one.name] for one in [*group, phase]]).text:
                group.append(phase)
        left = [phase for phase in left if phase not in group]
        fix = common_fix([helps[one.name] for one in group])
        yield _phase_rule(fullest, group[1:], room, fix, tight=tight)
        for phase in group[1:] if not tight else ():
            skipped = f"judged with {fullest.name.rule}, which the same change makes fit"
            yield Rule(phase.name.rule, True, _figures(phase, room), skipped=skipped)


def _phase_rule(phase: Phase, others: list[Phase], die: int, fix: Fix, *, tight: bool) -> Rule:
    also = ", ".join(f"{other.name.label} {gb(other.total)}" for other in others)
    also = f"; also {also}" if also else ""
    if tight:
        parts = {
            part: size for part, size in phase.parts.items() if part.estimate and part not in phase.settled
        }
        longest = ", if all sequences have the full length" if phase.total > die else ""
        figures = (
            f"stage {phase.stage}: {gb(phase.total)} of {gb(die)}{longest}, of which {gb(phase.estimated)} are "
            f"estimates ({listed(parts)}){also}"
        )
    else:
        figures = _figures(phase, die) + also
    name = f"{phase.name.rule}-tight" if tight else phase.name.rule
    certain = not tight and phase.total - phase.estimated > die
    key = phase.name.micro_batch_key or (
        "rollout.memory_share" if phase.name is PhaseName.GENERATE else "actor.parallel"
    )
    path = fix.path or tuple(key.split("."))
    return Rule(name, False, figures, fix.text, fix.keys, path, advice=tight, certain=certain)


def _figures(phase: Phase, die: int) -> str:
    return f"stage {phase.stage}: {listed(phase.parts)} = {gb(phase.total)}, of {gb(die)}"


def _cache_rules(facts: PlanInputs, memory: Memory, engine: EngineMemory, follows: str) -> Iterator[Rule]:
    """Check that the KV cache has room for every sequence at its full length.

    Args:
        follows: Id of a broken rule that explains a small cache, or "".
    """
    cache, each = engine.cache, engine.cache.blocks_of_sequence
    if each is None or cache.wanted is None:
        return
    left = f" - what training leaves there {gb(engine.left)}" if engine.left else ""
    forced = facts.whole(BLOCKS)
    source = (
        f"memory_share {engine.share:g} x {gb(memory.die)} - {listed({**engine.own, **engine.profiled})}{left}"
        if forced is None
        else f"num_gpu_blocks_override {forced}"
    )
    figures = (
        f"{source} = {gb(cache.size)}: {cache.blocks} blocks of {cache.block} tokens, of {cache.wanted} for "
        f"{cache.sequences} sequences of {cache.length}"
    )
    drops = _drops_preempted(facts, cache.length)
    dropped = drops and _CACHE_ROOM not in facts.switches
    if cache.blocks >= cache.wanted:
        yield Rule("kv-cache-room", True, figures)
        spare = (cache.blocks - cache.wanted) * cache.block * cache.per_token
        uncertain = estimated(engine.profiled)
        if dropped and spare < uncertain:
            wanted = cache.wanted + -(-uncertain // (cache.block * cache.per_token))
            tight_figures = (
                f"{gb(spare)} to spare, and {gb(uncertain)} are estimates; {_DROP_REASON}. {figures}"
            )
            yield _cache_rule(
                "kv-cache-room-tight",
                tight_figures,
                _cache_fix(facts, memory, engine, wanted),
                advice=True,
            )
        return
    if engine.left and follows:
        yield Rule("kv-cache-room", True, figures, skipped=f"follows from {follows}")
        return
    one = cache.blocks >= each
    why = "sequences are preempted and computed again"
    if drops:
        why = _DROP_REASON if dropped else f"sequences wait for room (adaptation {_CACHE_ROOM})"
    if not one:
        why = f"not one sequence fits {facts.upstream.cite('check_enough_kv_cache_memory', _ENOUGH)}"
    counted = engine.room - total(engine.own)
    yield _cache_rule(
        "kv-cache-room",
        f"{figures}: {why}",
        _cache_fix(facts, memory, engine, cache.wanted),
        advice=one and not dropped,
        certain=not one and counted < each * cache.block * cache.per_token,
    )


_ENOUGH = Place(
    "vllm/v1/core/kv_cache_utils.py",
    "def check_enough_kv_cache_memory(",
    ("b6553be", "vllm==0.9.1", "3821787", "vllm==0.18.0", "vllm==0.23.0"),
)
_DROPS = Place(
    "vllm_ascend/core/scheduler.py",
    "FINISHED_IGNORED",
    ("v0.9.1rc2", "vllm-ascend==0.9.1", "1de16ea", "e1d282d"),
)
_DROP_REASON = (
    "a preempted sequence may be longer than a step of the Ascend scheduler, which then drops it "
    "(vllm_ascend/core/scheduler.py@v0.9.1rc2, f20869e)"
)


def _cache_rule(name: str, figures: str, fix: str, *, advice: bool, certain: bool = False) -> Rule:
    path = ("rollout", "memory_share")
    return Rule(name, False, figures, fix, (BLOCKS, SHARE, _SEQUENCES), path, advice=advice, certain=certain)


def _cache_fix(facts: PlanInputs, memory: Memory, engine: EngineMemory, wanted: int) -> str:
    """Return the changes that provide enough cache blocks: a larger share or fewer sequences."""
    spared = max(0, wanted - (engine.cache.wanted or 0))
    return "; or ".join(find_cache_fixes(facts, memory, wanted, spared))


def _drops_preempted(facts: PlanInputs, longest: int | None) -> bool:
    """Return whether preempted sequences may be dropped: whole prompts are scheduled, and some exceed a step."""
    step = facts.whole(f"{ROLLOUT}.max_num_batched_tokens")
    longer = step is not None and longest is not None and step < longest
    return longer and facts.whole_prompts and facts.upstream.has(_DROPS)


def _host_rules(memory: Memory, machine: Machine) -> Iterator[Rule]:
    if machine.host is None or not memory.host:
        return
    need, store = total(memory.host), object_store(machine.host)
    figures = f"{listed(memory.host)} = {gb(need)} a node, of {gb(machine.host)}"
    path, keys = ("cluster", "nodes"), ("trainer.nnodes",)
    fix = "spread the recipe over more nodes (cluster.nodes), or offload less"
    if need > machine.host:
        counted = need - estimated(memory.host)
        yield Rule("memory-host", False, figures, fix, keys, path, certain=counted > machine.host)
        return
    yield Rule("memory-host", True, figures)
    if need + store > machine.host:
        tight_figures = (
            f"{figures}, and Ray's object store may take {gb(store)} (30% of the memory, 200 GB at most)"
        )
        fewer = max(0, machine.host - need)
        fix = f"start Ray with --object-store-memory={fewer // 10**9 * 10**9} or less, or offload less"
        yield Rule("memory-host-tight", False, tight_figures, fix, keys, path, advice=True, certain=False)
