"""The content of a report: a recorded run with secrets masked, its samples, and missing parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from npu_rl.common.masking import Secrets, masked_data, masked_text
from npu_rl.training.browse.run_page import FailureCause, RunPage
from npu_rl.training.monitor.metrics import Point, replaced_from
from npu_rl.training.record.recorded_attempt import RecordedAlarm, RecordedAttempt
from npu_rl.training.record.recorded_run import NEW, UNKNOWN, RecordedRun
from npu_rl.training.report.report_samples import SampledStep, sampled_steps

MOST_ALARMS = 2000  # in a report; more of one cause are the same news
_LEVELS = 40  # of nested data; a composed configuration has some ten


@dataclass(frozen=True)
class ReportedAttempt:
    """One attempt, with secrets masked.

    Attributes:
        steps: First and last step of its metrics.
        left_out: First and last of its steps that later attempts replaced.
    """

    recorded: RecordedAttempt
    steps: tuple[int, int] | None
    left_out: tuple[int, int] | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    host: Mapping[str, Any]
    nodes: tuple[Mapping[str, Any], ...]
    drift: Mapping[str, Any]

    @property
    def number(self) -> int:
        """Number of the attempt, from 1."""
        return self.recorded.number

    @property
    def outcome(self) -> str:
        """Outcome in words."""
        code = self.recorded.code
        status = "" if code in (None, 0) else f", exit status {code}"
        signal = f", {self.recorded.signal}" if self.recorded.signal else ""
        return f"{self.recorded.outcome or 'without an end'}{status}{signal}"

    def was_replaced(self, step: int | None) -> bool:
        """Return whether a step of this one is left out, since a later attempt went on from an earlier one."""
        return step is not None and self.left_out is not None and step >= self.left_out[0]


@dataclass(frozen=True)
class GatheredRun:
    """The content of a report on a run, with secrets masked.

    Attributes:
        state: State in words.
        facts: Content of run.json.
        alarms: At most MOST_ALARMS, of all attempts.
        alarms_left_out: Number of alarms beyond these.
        failure: Cause of the last attempt's failure, its place and what to do, if the logs show it.
        missing: What the report lacks, a sentence each.
    """

    recorded: RecordedRun
    state: str
    unproven: str | None
    facts: Mapping[str, Any]
    lock: Mapping[str, Any]
    recipe: Mapping[str, Any]
    recipe_text: str
    attempts: tuple[ReportedAttempt, ...]
    alarms: tuple[RecordedAlarm, ...]
    alarms_left_out: int
    samples: tuple[SampledStep, ...]
    failure: FailureCause | None
    missing: tuple[str, ...]
    secrets: Secrets

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.recorded.name

    @property
    def points(self) -> Sequence[Point]:
        """Metrics by step, merged over attempts."""
        return self.recorded.points

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the interpreter's packages."""
        interpreter = self.facts.get("interpreter")
        found = interpreter.get("packages") if isinstance(interpreter, Mapping) else None
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}

    @property
    def overrides(self) -> list[str]:
        """KEY=VALUE arguments of the command line."""
        return [self.masked(one) for one in self.recorded.recipe.overrides]

    @property
    def dies_per_card(self) -> int:
        """Number of devices per card."""
        return min(self.recorded.dies_per_card, 64)

    def masked(self, text: str) -> str:
        """Mask the secrets in a text."""
        return self.secrets.mask(masked_text(text))

    def replaced(self, alarm: RecordedAlarm) -> bool:
        """Return whether an alarm belongs to a step that is left out."""
        return any(one.number == alarm.attempt and one.was_replaced(alarm.step) for one in self.attempts)


def gather_run(run: RecordedRun) -> GatheredRun:
    """Gather the content of a report on a run, which may be in progress.

    Raises:
        NpuRlError: If its metrics are larger than any run's.
        OSError: If the disk fails.
    """
    masking = _Masking(Secrets.of(os.environ))
    facts = masking.data({**run.facts, **run.recipe.facts}, "run.json")
    lock = masking.data(run.lock, "lock.json")
    recipe = masking.data(run.recipe_data, "recipe.yaml")
    attempts = _attempts(run, masking)
    samples = sampled_steps(run, masking.secrets)
    reason = run.unproven
    return GatheredRun(
        recorded=run,
        state=_state(run),
        unproven=None if reason is None else masking.text(reason),
        facts=facts,
        lock=lock,
        recipe=recipe,
        recipe_text=masking.text(run.recipe_text),
        attempts=attempts,
        alarms=tuple(masking.alarm(alarm) for alarm in run.alarms[:MOST_ALARMS]),
        alarms_left_out=max(len(run.alarms) - MOST_ALARMS, 0),
        samples=samples,
        failure=_failure(run, masking),
        missing=(*_missing(run, facts, attempts, samples), *masking.unread),
        secrets=masking.secrets,
    )


@dataclass
class _Masking:
    """Masking of secrets in parts of a record.

    Attributes:
        unread: A sentence on each part that is nested deeper than anything that npu-rl writes, and is left out.
    """

    secrets: Secrets
    unread: list[str] = field(default_factory=list)

    def text(self, text: str) -> str:
        return self.secrets.mask(masked_text(text))

    def data(self, data: Mapping[str, Any], name: str) -> dict[str, Any]:
        if _is_shallow(data):
            return dict(masked_data(dict(data), known=self.secrets))
        self.unread.append(f"{name} is nested too deeply.")
        return {}

    def environment(self, attempt: RecordedAttempt) -> dict[str, Any]:
        name = f"attempts/{attempt.number}/environment.json"
        try:
            return self.data(attempt.environment, name)
        except RecursionError:  # of a value that is not text
            self.unread.append(f"{name} is nested too deeply.")
            return {}

    def alarm(self, alarm: RecordedAlarm) -> RecordedAlarm:
        return replace(
            alarm,
            kind=self.text(alarm.kind),
            message=self.text(alarm.message),
            cause=self.text(alarm.cause),
            place=self.text(alarm.place),
            hint=self.text(alarm.hint),
        )


def _failure(run: RecordedRun, masking: _Masking) -> FailureCause | None:
    found = RunPage(run).failure
    if found is None:
        return None
    return FailureCause(masking.text(found.cause), masking.text(found.where), masking.text(found.hint))


def _is_shallow(data: object) -> bool:
    level = [data]
    for _ in range(_LEVELS):
        below = [one.values() if isinstance(one, Mapping) else one for one in level]
        level = [value for values in below for value in values if isinstance(value, Mapping | list)]  # type: ignore[attr-defined]
        if not level:
            return True
    return False


def _state(run: RecordedRun) -> str:
    if run.state == NEW:
        return "not started"
    if run.state == UNKNOWN:
        return f"unknown, begun on {run.begun_on}"
    return run.state


def _attempts(run: RecordedRun, masking: _Masking) -> tuple[ReportedAttempt, ...]:
    """Return the attempts, each with the steps that later ones replaced (as in `metrics.curve`)."""
    found = []
    for index, attempt in enumerate(run.attempts):
        steps = _span(attempt)
        later = [replaced_from(one.points) for one in run.attempts[index + 1 :] if one.points]
        left_out = None
        if steps and later and min(later) <= steps[1]:
            left_out = (max(min(later), steps[0]), steps[1])
        place = f"attempts/{attempt.number}"
        found.append(
            ReportedAttempt(
                attempt,
                steps,
                left_out,
                tuple(masking.text(word) for word in attempt.command),
                masking.environment(attempt),
                masking.data(attempt.host, f"{place}/host.json"),
                tuple(masking.data(node, f"{place}/nodes.json") for node in attempt.nodes),
                masking.data(attempt.drift, f"{place}/drift.json"),
            )
        )
    return tuple(found)


def _span(attempt: RecordedAttempt) -> tuple[int, int] | None:
    steps = [point.step for point in attempt.points]
    return (min(steps), max(steps)) if steps else None


def _missing(
    run: RecordedRun,
    facts: Mapping[str, Any],
    attempts: Sequence[ReportedAttempt],
    samples: Sequence[SampledStep],
) -> list[str]:
    found = []
    if run.is_running:
        found.append("The run has not ended: the report shows its state when it was written.")
    if not attempts and run.verdict:
        return [*found, "The rehearsal trained nothing: what it tried is in its rehearsal.json."]
    if not attempts and facts.get("rehearsal") is not None and run.state != NEW:
        return [*found, "The rehearsal has trained nothing, and has no verdict."]
    if not attempts:
        return [*found, "The run has no attempt: nothing was started."]
    if not run.points:
        found.append("No step has finished: metrics are missing, and the charts are empty.")
    if not run.lock:
        found.append("No lock.json can be read: pins, pull requests and patches are not known.")
    if not facts.get("interpreter"):
        found.append("run.json has no versions of packages.")
    for attempt in attempts:
        if not attempt.environment:
            found.append(f"Attempt {attempt.number} has no environment.json: its variables are not known.")
        if not attempt.nodes and not attempt.recorded.refused:
            found.append(f"Attempt {attempt.number} has no nodes.json: Ray did not start, or did not report.")
    if not samples:
        found.append("No samples of responses were recorded (logging.samples in the recipe).")
    return found
