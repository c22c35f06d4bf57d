"""Memory, disk and checkpoints of a plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npu_rl.memory.memory_by_phase import Memory, Phase, PhaseName
from npu_rl.memory.memory_parts import Parts, estimated, gb, total
from npu_rl.plan.rules.checkpoint_rules import Checkpoints


def memory_json(memory: Memory) -> dict[str, Any]:
    """Return the memory as JSON, in whole bytes; `estimates` has the ids of the estimated parts."""
    engine = memory.engine
    return {
        "stages": [
            {
                "layers": [one.layers.start, one.layers.stop],
                "parameters": dict(one.counts),
                "weights": one.weights,
                "gradients": one.gradients,
                "optimizer": one.states,
                "on_host": _bytes(one.on_host),
            }
            for one in memory.stages
        ],
        "rollout": None
        if engine is None
        else {
            "parameters": dict(engine.counts),
            "bytes": _bytes(engine.parts(engine.cache.size)),
            "share": engine.share,
            "kv_cache": {
                "blocks": engine.cache.blocks,
                "wanted_blocks": engine.cache.wanted,
                "block_tokens": engine.cache.block,
                "bytes_per_token": engine.cache.per_token,
            },
        },
        "phases": [
            {
                "name": phase.name.label,
                "rule": phase.name.rule,
                "stage": phase.stage,
                "parts": _bytes(phase.parts),
                "estimates": _estimates(phase.parts),
                "total": phase.total,
                "estimated": phase.estimated,
            }
            for phase in memory.phases
        ],
        "host": _bytes(memory.host),
        "host_estimates": _estimates(memory.host),
        "assumed": list(memory.assumed),
        "missing": list(memory.missing),
    }


def memory_text(memory: Memory, host: int | None) -> Iterator[str]:
    """Yield the lines on memory.

    Args:
        memory: The memory of all stages and phases.
        host: Bytes of memory of a node; None if it is not known.
    """
    yield "Memory of a die in training"
    yield "  stage  parameters  weights   gradients  optimizer  of it on the host"
    for number, one in enumerate(memory.stages):
        yield (
            f"  {number:>5}  {sum(one.counts.values()) / 1e6:>8.1f} M  {gb(one.weights):<8}  {gb(one.gradients):<9}  "
            f"{gb(one.states):<9}  {gb(total(one.on_host))}"
        )
    yield "  parameters by component, in millions:"
    names = list(dict.fromkeys(name for one in memory.stages for name in one.counts))
    yield f"  stage  {'  '.join(f'{name:>{max(7, len(name))}}' for name in names)}"
    for number, one in enumerate(memory.stages):
        cells = (f"{one.counts[name] / 1e6:>{max(7, len(name))}.1f}" for name in names)
        yield f"  {number:>5}  {'  '.join(cells)}"
    if memory.engine is not None:
        counts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in memory.engine.counts.items())
        yield "Parameters of a die in the rollout"
        yield from _wrapped(f"{sum(memory.engine.counts.values()) / 1e9:.2f} B: {counts}")
    for name in PhaseName:
        phase = memory.worst(name)
        if phase is not None:
            yield from _phase_lines(phase, len(memory.stages))
    judged = "" if host is not None else "; not judged without --host-memory-gb"
    yield f"Memory of a host: {gb(total(memory.host))} a node{judged}"
    yield from _part_lines(memory.host)
    yield "Assumed"
    for text in memory.assumed:
        yield from _wrapped(f"- {text}")
    if memory.missing:
        yield "Not counted"
        for text in memory.missing:
            yield from _wrapped(f"- {text}")


def checkpoints_text(checkpoints: Checkpoints) -> str:
    """Return one line on the number and size of checkpoints."""
    kept = "all kept" if checkpoints.kept == checkpoints.written else f"{checkpoints.kept} kept"
    return f"Checkpoints: {checkpoints.written} of {gb(checkpoints.each)}, {kept}: {gb(checkpoints.disk)} at once"


def _phase_lines(phase: Phase, stages: int) -> Iterator[str]:
    where = f" (stage {phase.stage} needs most)" if stages > 1 else ""
    of_it = f", {gb(phase.estimated)} of it estimated" if phase.estimated else ""
    yield f"At once on a die, {phase.name.label}{where}: {gb(phase.total)}{of_it}"
    yield from _part_lines(phase.parts)


def _part_lines(parts: Parts) -> Iterator[str]:
    for part, size in parts.items():
        yield f"  {part!s:<48} {gb(size):>9}"


def _bytes(parts: Parts) -> dict[str, int]:
    return {part.key: size for part, size in parts.items()}


def _estimates(parts: Parts) -> list[str]:
    return [part.key for part in parts if part.estimate] if estimated(parts) else []


def _wrapped(text: str) -> Iterator[str]:
    from textwrap import wrap

    yield from wrap(text, 98, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
