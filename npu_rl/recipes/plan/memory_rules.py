"""Whether what lies on a die and on a host at once fits there, and what to change if it doesn't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.recipes.plan.facts import ACTOR, REFERENCE, ROLLOUT, TRANSFORMER, Facts
from npu_rl.recipes.plan.memory import GENERATE, HANDOVER, UPDATE, Memory, Phase
from npu_rl.recipes.plan.rule import Rule

_SHARE = f"{ROLLOUT}.gpu_memory_utilization"


@dataclass(frozen=True)
class Machine:
    """What the dies and hosts have, in bytes. host: None if it isn't known."""

    die: int = 64 * 10**9
    host: int | None = None


def memory_rules(facts: Facts, memory: Memory, machine: Machine) -> Iterator[Rule]:
    """The three moments of a step, the engine's own share, and the host."""
    names = {
        UPDATE: "memory-update",
        HANDOVER: "memory-weight-sync",
        GENERATE: "memory-generate",
    }
    for phase_name, name in names.items():
        phase = memory.worst(phase_name)
        if phase is not None:
            change, keys = _help(facts, phase)
            yield Rule(name, phase.total <= machine.die, _said(phase, machine), change, keys)
    share = facts.values.value(_SHARE)
    if memory.engine and isinstance(share, int | float) and not isinstance(share, bool):
        need, room = sum(memory.engine.values()), int(share * machine.die)
        yield Rule(
            "memory-engine",
            need <= room,
            f"{_listed(memory.engine)} = {gb(need)}, of memory_share {share:g} x {gb(machine.die)} = {gb(room)}",
            "lower rollout.max_sequences or the lengths, raise rollout.memory_share or VLLM_DP_SIZE",
            (f"{ROLLOUT}.max_num_seqs", _SHARE),
        )
    if machine.host is not None and memory.host:
        need = sum(memory.host.values())
        yield Rule(
            "memory-host",
            need <= machine.host,
            f"{_listed(memory.host)} = {gb(need)} a node, of {gb(machine.host)}",
            "spread the recipe over more nodes, or offload less",
            ("trainer.nnodes",),
        )


def _said(phase: Phase, machine: Machine) -> str:
    return f"stage {phase.stage}: {_listed(phase.parts)} = {gb(phase.total)}, of {gb(machine.die)}"


def _help(facts: Facts, phase: Phase) -> tuple[str, tuple[str, ...]]:
    """What would take the largest part off the die, as far as a switch does."""
    parts, advice = phase.parts, list[tuple[str, str]]()
    if "the actor's optimizer states" in parts:
        if phase.name == UPDATE:
            advice.append(
                ("set swap_optimizer in actor.transformer to true", f"{TRANSFORMER}.swap_optimizer")
            )
        else:
            advice.append(("set offload.optimizer to true", f"{ACTOR}.megatron.optimizer_offload"))
    if "the reference's weights" in parts:
        advice.append(("set offload.reference to true", f"{REFERENCE}.megatron.param_offload"))
    if phase.name == GENERATE and "the actor's weights" in parts:
        advice.append(("set offload.parameters to true", f"{ACTOR}.megatron.param_offload"))
    if phase.name != UPDATE and "the actor's gradients" in parts:
        advice.append(("set offload.gradients to true", f"{ACTOR}.megatron.grad_offload"))
    if phase.name != GENERATE and "the KV cache" in parts:
        advice.append(("set rollout.free_cache to true", f"{ROLLOUT}.free_cache_engine"))
    if "activations (estimate)" in parts and facts.transformer("recompute_granularity") != "full":
        advice.append(
            ("set recompute_granularity in actor.transformer to full", f"{TRANSFORMER}.recompute_granularity")
        )
    if phase.name == GENERATE:
        advice.append(("lower rollout.max_sequences", f"{ROLLOUT}.max_num_seqs"))
    if phase.name != GENERATE:
        advice.append(
            (
                "spread training further (actor.parallel.pipeline or expert)",
                f"{ACTOR}.megatron.pipeline_model_parallel_size",
            )
        )
    return "; ".join(text for text, _ in advice), tuple(key for _, key in advice)


def _listed(parts: Mapping[str, int]) -> str:
    return " + ".join(f"{name} {gb(size)}" for name, size in parts.items())


def gb(size: float) -> str:
    """Bytes for people, in decimal GB."""
    return f"{size / 1e9:.1f} GB" if size >= 10**8 else f"{size / 1e6:.2f} MB"
