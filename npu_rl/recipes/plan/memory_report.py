"""Memory, disk and checkpoints of a plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName
from npu_rl.recipes.memory.memory_parts import Parts, estimated, gb, total
from npu_rl.recipes.plan.rules.checkpoint_rules import Checkpoints

RANGE = (
    "lower end: what is counted from sizes alone, as if sequences had no length and no estimate came true",
    "upper end, which the rules use: all sequences as long as the recipe allows, and every estimate whole",
    "evidence: four published runs, none at a manifest's pins, HCCL's buffers and CANN's context left out. The upper "
    "end was +25.7 % off (GSPO Qwen3-30B-A3B; most of it the logits of the longest sequences), -0.1 % (GSPO Qwen3-8B "
    "with FSDP2, to which FSDP's estimate was fitted), -1.6 % (GRPO Qwen3-30B-A3B) and -5.9 % (DAPO Moonlight-16B, "
    "DeepSeek-V3's kind of model): a run may need some percent more than it",
)
"""What the ends of a phase's range rest on. tests/plan/test_measured.py holds the figures."""

_SHORT = {"dense layers": "dense", "shared experts": "shared"}  # in the heads of a table of 80 columns


def memory_json(memory: Memory) -> dict[str, Any]:
    """Return the memory as JSON, in bytes. `estimates` lists the ids of the estimated parts."""
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
                "low": phase.low,
                "high": phase.total,
                "by_lengths": phase.by_lengths,
                "other_estimates": phase.other_estimates,
            }
            for phase in memory.phases
        ],
        "host": _bytes(memory.host),
        "host_estimates": _estimates(memory.host),
        "assumed": list(memory.assumed),
        "missing": list(memory.missing),
        "range": list(RANGE),
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
    yield from _component_lines(memory)
    if memory.engine is not None:
        counts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in memory.engine.counts.items())
        yield "Parameters of a die in the rollout"
        yield from _wrapped(f"{sum(memory.engine.counts.values()) / 1e9:.2f} B: {counts}")
    for name in PhaseName:
        phase = memory.worst(name)
        if phase is not None:
            yield from _phase_lines(phase, len(memory.stages))
    if memory.phases:
        yield "Range"
        for text in RANGE:
            yield from _wrapped(f"- {text}")
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


def _component_lines(memory: Memory) -> Iterator[str]:
    """Yield a table of each stage's parameters by component, each column as wide as it needs to be."""
    names = list(dict.fromkeys(name for one in memory.stages for name in one.counts))
    columns = [
        [_SHORT.get(name, name), *(f"{one.counts[name] / 1e6:.1f}" for one in memory.stages)]
        for name in names
    ]
    widths = [max(map(len, column)) for column in columns]
    for number, cells in enumerate(zip(*columns, strict=True)):
        stage = "stage" if number == 0 else str(number - 1)
        row = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"  {stage:>5}  {row}"


def _phase_lines(phase: Phase, stages: int) -> Iterator[str]:
    where = f" (stage {phase.stage})" if stages > 1 else ""
    of_it = f", {gb(phase.estimated)} estimated" if phase.estimated else ""
    low, high = gb(phase.low), gb(phase.total)
    size = high if phase.low == phase.total else f"{low} - {high}"
    if low[-2:] == high[-2:]:
        size = size.replace(f" {high[-2:]} - ", "-")
    yield f"At once on a die, {phase.name.label}{where}: {size}{of_it}"
    if phase.low != phase.total:
        yield (
            f"  range: up to {gb(phase.by_lengths)} by the lengths of sequences, "
            f"{gb(phase.other_estimates)} by other estimates"
        )
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

    yield from wrap(text, 80, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
