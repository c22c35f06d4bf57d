"""Memory, disk and checkpoints of a plan as text."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.memory.measured_runs import MEASURED
from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName
from npu_rl.recipes.memory.memory_parts import Parts, gb, total
from npu_rl.recipes.plan.rules.checkpoint_rules import Checkpoints

RANGE = (
    "lower end: what is counted from sizes alone, as if sequences had no length and no estimate came true",
    "upper end, which the rules use: all sequences as long as the recipe allows, and every estimate whole",
    "evidence: published runs, none at a manifest's pins, HCCL's buffers and CANN's context left out. The upper end "
    f"was off by {', '.join(f'{run.error:+.1f} % ({run.name})' for run in MEASURED)}. Most of the first is the logits "
    "of the longest sequences; FSDP's estimate was fitted to the second. A run may need some percent more than it",
)
"""What the ends of a phase's range rest on. tests/plan/test_measured.py holds the figures."""


def phases_text(memory: Memory) -> Iterator[str]:
    """Yield a line for each phase at its fullest stage, and what is not counted."""
    yield "Phases of a step, on a die"
    for phase in filter(None, map(memory.worst, PhaseName)):
        where = f" (stage {phase.stage})" if len(memory.stages) > 1 else ""
        of_it = f", {gb(phase.estimated)} estimated" if phase.estimated else ""
        yield f"  {phase.name.label + where:<30} {_size_text(phase)}{of_it}"
    if memory.missing:
        yield "Not counted"
        for text in memory.missing:
            yield from _wrapped(f"- {text}")


def memory_text(memory: Memory) -> Iterator[str]:
    """Yield the lines on the memory of training, of the engine and of each phase by part, and what they rest on."""
    yield "Memory of a die in training"
    yield "  stage  parameters  weights   gradients  optimizer  of it on the host"
    for number, one in enumerate(memory.stages):
        yield (
            f"  {number:>5}  {sum(one.counts.values()) / 1e6:>8.1f} M  {gb(one.weights):<8}  {gb(one.gradients):<9}  "
            f"{gb(one.states):<9}  {gb(total(one.on_host))}"
        )
    for phase in filter(None, map(memory.worst, PhaseName)):
        yield f"At once on a die, {phase.name.label}: {_size_text(phase)}"
        yield (
            f"  range: up to {gb(phase.by_lengths)} by the lengths of sequences, "
            f"{gb(phase.other_estimates)} by other estimates"
        )
        yield from _part_lines(phase.parts)
    for title, texts in (("Range", RANGE if memory.phases else ()), ("Assumed", memory.assumed)):
        yield from (title,) if texts else ()
        for text in texts:
            yield from _wrapped(f"- {text}")


def host_text(memory: Memory, host: int | None) -> Iterator[str]:
    """Yield the lines on a host's memory, of which `host` bytes are there, if that is known."""
    judged = "" if host is not None else "; not judged without --host-memory-gb"
    yield f"Memory of a host: {gb(total(memory.host))} a node{judged}"
    yield from _part_lines(memory.host)


def checkpoints_text(checkpoints: Checkpoints) -> str:
    """Return one line on the number and size of checkpoints."""
    kept = "all kept" if checkpoints.kept == checkpoints.written else f"{checkpoints.kept} kept"
    return f"Checkpoints: {checkpoints.written} of {gb(checkpoints.each)}, {kept}: {gb(checkpoints.disk)} at once"


def _size_text(phase: Phase) -> str:
    """Return a phase's range: 33.6-37.7 GB."""
    low, high = gb(phase.low), gb(phase.total)
    size = high if phase.low == phase.total else f"{low} - {high}"
    return size.replace(f" {high[-2:]} - ", "-") if low[-2:] == high[-2:] else size


def _part_lines(parts: Parts) -> Iterator[str]:
    for part, size in parts.items():
        yield f"  {part!s:<48} {gb(size):>9}"


def _wrapped(text: str) -> Iterator[str]:
    from textwrap import wrap

    yield from wrap(text, 80, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
