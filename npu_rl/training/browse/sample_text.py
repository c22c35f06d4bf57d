"""Samples of a run as text. A model's responses may contain anything, so each line is escaped."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.common.errors import NpuRlError, UsageError
from npu_rl.common.printable import counted, one_line, printable
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.record.samples import ChosenSamples, Order, RunSample, choose_samples

ORDERS: tuple[Order, ...] = ("written", "best", "worst", "random")
_LONGEST = 20_000  # characters of a text that are shown


def samples_of(
    run: RecordedRun, order: str, count: int, step: int | None, *, validation: bool, seed: int
) -> ChosenSamples:
    """Return samples of a run.

    Args:
        run: The run.
        order: One of ORDERS. As they were written they are of one step: the last one, if none is given.
        count: At most so many.
        step: A step; None for all.
        validation: Of validations, not of training steps.
        seed: Of the random order.

    Raises:
        UsageError: For an unknown order, or a step without samples.
        NpuRlError: If the run has none.
    """
    if order not in ORDERS:
        raise UsageError(f"Unknown order {order!r}", where="--order", hint=f"One of {', '.join(ORDERS)}")
    files = run.sample_files(validation=validation)
    if not files:
        raise _none_error(run, validation)
    if step is None and order == "written":
        step = max(files)
    if step is not None and step not in files:
        raise UsageError(
            f"Run {run.name} has no samples of step {step}",
            where=str(run.record.samples),
            why=f"Steps with samples: {_ranges(list(files))}.",
            hint="Choose one of them with --step N.",
        )
    chosen = files if step is None else {step: files[step]}
    return choose_samples(chosen, order, count, seed)


def sample_lines(run: RecordedRun, found: ChosenSamples, order: str) -> str:
    """Return samples as text, escaped."""
    parts = [_heading(run, found, order), *("\n".join(_sample_lines(one)) for one in found.samples)]
    return "\n\n".join(parts) + "\n"


def _heading(run: RecordedRun, found: ChosenSamples, order: str) -> str:
    skipped = f"; {counted(found.skipped, 'line')} of the files can't be read" if found.skipped else ""
    how = "" if order == "written" else f", {order}"
    return f"{run.name}: {len(found.samples)} of {counted(found.seen, 'sample')}{how}{skipped}"


def _sample_lines(one: RunSample) -> Iterator[str]:
    reward = "none" if one.reward is None else f"{one.reward:.4g}"
    yield f"--- step {one.step}, reward {reward} ---"
    extra = [(name, str(value)) for name, value in one.extra.items() if value not in (None, "")]
    for label, text in (("prompt", one.prompt), ("response", one.response), *extra):
        first, *rest = _shown(text).split("\n")
        yield f"{one_line(label) + ':':<10} {first}"
        yield from (f"{'':10} {line}" for line in rest)


def _shown(text: str) -> str:
    """Escape every line of a text, so that none looks like a heading. A very long text is cut."""
    more = len(text) - _LONGEST
    lines = printable(text[:_LONGEST].replace("\t", "    ").rstrip("\n"))
    return lines + (f"\n... and {more:,} more characters" if more > 0 else "")


def _none_error(run: RecordedRun, validation: bool) -> NpuRlError:
    logging = run.recipe.get("logging")
    kept = logging.get("samples") if isinstance(logging, dict) else None
    trainer = run.recipe.get("trainer")
    others = run.sample_files(validation=not validation)
    hint: str | None = None
    why: str | None = None
    if others and validation:
        hint = "Those of training steps: leave --validation out."
    elif others:
        hint = "Those of its validations: --validation"
    elif isinstance(trainer, dict) and trainer.get("keys"):
        why = "This recipe's trainer is not verl's, and npu-rl knows no key of it that writes samples."
        return NpuRlError(f"Run {run.name} has no samples", where=str(run.record.samples), why=why)
    elif str(kept).lower() == "false":
        hint = "The recipe has logging.samples=false; logging.samples=true writes those of every step."
    kind = "samples of a validation" if validation else "samples of training steps"
    if kept == "validation" and not validation:
        why = "The recipe has logging.samples=validation."
    if not others and hint is None and not run.steps:
        why = "It has no step yet." if run.is_running else "It ended before its first step."
    return NpuRlError(f"Run {run.name} has no {kind}", where=str(run.record.samples), why=why, hint=hint)


def _ranges(steps: list[int]) -> str:
    """Format steps as 1-5, 8, 10-12."""
    parts: list[list[int]] = []
    for step in sorted(steps):
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in parts]
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    return ", ".join(shown[:20]) + more
