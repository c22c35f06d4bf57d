"""Steps and recipe of each attempt of a run: which steps are in the curve, and what the attempt changed."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.training.record.differing_values import DifferingValue, differing, equal, flat
from npu_rl.training.record.recorded_attempt import RecordedAttempt
from npu_rl.training.record.recorded_run import RecordedRun


@dataclass(frozen=True)
class AttemptChanges:
    """One attempt beside the others of its run.

    Attributes:
        steps: First and last logged step; None without any.
        replaced: First step that a later attempt replaced in the curve, or None.
        changed: Differences of its recipe from that of the attempt before.
    """

    attempt: RecordedAttempt
    steps: tuple[int, int] | None
    replaced: int | None
    changed: tuple[DifferingValue, ...]

    def keeps(self, step: int) -> bool:
        """Return whether a step of it is in the run's curve."""
        return self.replaced is None or step < self.replaced

    @property
    def steps_text(self) -> str:
        """Steps in words."""
        if self.steps is None:
            return "no step"
        again = "" if self.replaced is None else f", from {self.replaced} on replaced by a later attempt"
        return f"steps {self.steps[0]}-{self.steps[1]}{again}"

    @property
    def changed_text(self) -> str:
        """Changes of the recipe in words; empty without any."""
        return ", ".join(map(str, self.changed))

    @property
    def outcome(self) -> str:
        """Outcome in words."""
        signal = f" ({self.attempt.signal})" if self.attempt.signal else ""
        return f"{self.attempt.outcome or 'no end recorded'}{signal}"


def attempt_changes(run: RecordedRun) -> list[AttemptChanges]:
    """Return the attempts of a run, each beside the others."""
    found: list[AttemptChanges] = []
    before: dict[str, str] | None = None
    for attempt in run.attempts:
        logged, kept = [point.step for point in attempt.points], run.steps_of(attempt)
        steps = (min(logged), max(logged)) if logged else None
        replaced = None if steps is None or kept == steps else kept[1] + 1 if kept else steps[0]
        recipe = flat(attempt.recipe_data)
        changed = () if before is None else tuple(differing(before, recipe))
        found.append(AttemptChanges(attempt, steps, replaced, changed))
        before = recipe
    return found


def trained_recipe(run: RecordedRun) -> dict[str, str]:
    """Return the values of a run's recipe by key; of one that a resume has changed, all with their last steps."""
    spans = ((one, run.steps_of(one)) for one in run.attempts)
    parts = [(flat(one.recipe_data), span[1]) for one, span in spans if span is not None]
    found = {} if parts else flat(run.recipe_data)
    for key in dict.fromkeys(key for values, _ in parts for key in values):
        texts: list[tuple[str, int]] = []  # values with their last steps
        for values, last in parts:
            value = values.get(key, "(not set)")
            if texts and equal(texts[-1][0], value):
                texts.pop()
            texts.append((value, last))
        changed = ", ".join(f"{value} to step {last}" for value, last in texts)
        found[key] = texts[0][0] if len(texts) == 1 else changed
    return found
