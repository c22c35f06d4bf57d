"""The page of one run: outcome, curve, phases, alarms, attempts, provenance and next commands."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from textwrap import TextWrapper
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.training.browse.attempt_changes import AttemptChanges, attempt_changes
from npu_rl.training.browse.next_commands import next_commands
from npu_rl.training.browse.rehearsal_failures import rehearsal_failures
from npu_rl.training.browse.run_rows import run_row, steps_text
from npu_rl.training.monitor.metrics import phase_seconds, rewards, seconds, throughput
from npu_rl.training.monitor.plot import final_curve
from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.attempt import now
from npu_rl.training.record.recorded_attempt import RecordedAlarm
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.record.rehearsal_end import rehearsal_error

_RECENT = 50  # last steps whose medians are shown
_ALARMS = 20  # causes, of the text
_COMPONENT = ("name", "pin", "merges", "patches")
_WRAPPED = TextWrapper(100, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class FailureCause:
    """The cause of a run's failure."""

    cause: str
    where: str
    hint: str


@dataclass(frozen=True)
class RunPage:
    """The output of `runs show` for one run.

    Attributes:
        given, workspace: How it was named, as of `next_commands`.
    """

    run: RecordedRun
    given: str = ""
    workspace: str = ""

    @cached_property
    def phases(self) -> dict[str, float]:
        """Seconds per step and phase: medians over the last steps that have them."""
        found: dict[str, list[float]] = {}
        for point in self.run.points[-_RECENT:]:
            took = seconds(point.data)
            for name, value in {
                **({} if took is None else {"step": took}),
                **phase_seconds(point.data),
            }.items():
                found.setdefault(name, []).append(value)
        return {name: statistics.median(values) for name, values in found.items()}

    @cached_property
    def tokens(self) -> float | None:
        """Tokens per second per device: the median over the last steps that have it."""
        found = [rate[0] for point in self.run.points[-_RECENT:] if (rate := throughput(point.data))]
        return statistics.median(found) if found else None

    @cached_property
    def failure(self) -> FailureCause | None:
        """Cause of the failure, as its npu-rl recorded it; None if the run didn't fail."""
        run = self.run
        if run.state != "failed":
            return None
        failures = rehearsal_failures(run.verdict)
        if failures:
            return FailureCause("\n".join(failures), str(run.folder / "rehearsal.json"), "")
        error = ({} if run.verdict else rehearsal_error(run.folder)) or (run.last.error if run.last else {})
        return _recorded_cause(error) if error else None

    @cached_property
    def causes(self) -> list[tuple[RecordedAlarm, RecordedAlarm, int]]:
        """The first and the last alarm of each cause, and their number."""
        found: dict[tuple[str, str], list[RecordedAlarm]] = {}
        for alarm in self.run.alarms:
            found.setdefault((alarm.kind, alarm.cause), []).append(alarm)
        return [(alarms[0], alarms[-1], len(alarms)) for alarms in found.values()]

    @property
    def components(self) -> list[tuple[str, str, str, str]]:
        """Each component of the lock: its name, its pin, and what is merged and patched into it."""
        return [
            (
                name,
                one.get("pin") or next((two["pypi"] for two in one["sources"] if two.get("pypi")), "?"),
                " ".join(f"{merge['ref']} {merge['head']}" for merge in one.get("merges", ())),
                " ".join(patch["name"] for patch in one.get("patches", ())),
            )
            for name, one in self.run.lock.get("components", {}).items()
        ]

    @cached_property
    def next(self) -> list[str]:
        """Useful commands for the run's current state."""
        return next_commands(self.run, self.given, self.workspace)

    def to_json(self) -> dict[str, Any]:
        """Return the page as documented in docs/json.md."""
        run, dies = self.run, self.run.dies_per_card
        return {
            **asdict(run_row(run)),
            "unproven": run.unproven,
            "goal": run.recipe.goal,
            "curve": [[step, value] for step, value in rewards(run.points)],
            "phases": {name: round(value, 4) for name, value in self.phases.items()},
            "tokens_per_second": self.tokens
            and {"device": round(self.tokens, 1), "card": round(self.tokens * dies, 1)},
            "alarms": [asdict(alarm) for alarm in run.alarms],
            "failure": self.failure and asdict(self.failure),
            "attempts": [_attempt_json(one) for one in attempt_changes(run)],
            "facts": dict(run.facts),
            "components": [dict(zip(_COMPONENT, one, strict=True)) for one in self.components],
            "next": self.next,
        }

    def text(self) -> str:
        """Return the page as lines."""
        run = self.run
        curve = final_curve(run.points, run.recipe.goal)
        parts = [
            list(self.head()),
            [curve or "There is no reward."],
            list(self._speed()),
            list(self._alarm_lines()),
            list(self._failure_lines()),
            list(self._attempt_lines()),
            list(self._provenance_lines()),
            ["next", *(f"  {line}" for line in self.next)] if self.next else [],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def head(self) -> Iterator[str]:
        """Yield the lines on the run's outcome."""
        run = self.run
        words = [f"{run.name}: {run.state}"]
        if run.attempts:
            words.append(f"{steps_text(run)} steps")
        if run.last_reward is not None:
            words.append(f"reward {run.last_reward:.3f}")
        if run.recipe.goal is not None:
            words.append(f"goal {run.recipe.goal:g}")
        if run.seconds is not None:
            words.append(f"{clock(run.seconds)} in {counted(len(run.attempts), 'attempt')}")
        if self.tokens is not None:
            words.append(f"{self.phases.get('step', 0):.3g} s a step, {self.tokens:.0f} tok/s/device")
        yield ", ".join(words)
        if run.unproven is not None:
            yield f"UNPROVEN: {run.unproven}"

    def _speed(self) -> Iterator[str]:
        if not self.phases:
            return
        yield f"phases (seconds, median of the last {min(len(self.run.points), _RECENT)} steps)"
        yield "  " + "  ".join(f"{name} {value:.3g}" for name, value in self.phases.items())
        if self.tokens is not None and self.run.dies_per_card > 1:
            yield f"  tokens per second: {self.tokens * self.run.dies_per_card:.0f} per card"

    def _alarm_lines(self) -> Iterator[str]:
        if self.causes:
            yield "alarms"
        for first, last, count in self.causes[:_ALARMS]:
            yield f"  {_alarm_place(first)}: {first.message}"
            yield from _labelled(4, why=first.cause, where=first.place, next=first.hint)
            if count > 1:
                yield from _labelled(4, often=f"{count} times, the last at {_alarm_place(last)}")
        if len(self.causes) > _ALARMS:
            yield f"  and alarms of {counted(len(self.causes) - _ALARMS, 'other cause')}"

    def _failure_lines(self) -> Iterator[str]:
        if self.failure is not None:
            yield "failure"
            yield from _labelled(2, why=self.failure.cause, where=self.failure.where, next=self.failure.hint)

    def _attempt_lines(self) -> Iterator[str]:
        if self.run.attempts:
            yield "attempts"
        for one in attempt_changes(self.run):
            yield "  " + "  ".join(filter(None, _attempt_words(one, self.run)))
            if one.changed:
                yield f"     changed: {one.changed_text}"

    def _provenance_lines(self) -> Iterator[str]:
        run = self.run
        yield "provenance"
        python = run.facts.get("interpreter", {})
        rows = [
            ("recipe", " ".join((run.recipe.argument, *run.recipe.overrides))),
            ("digest", run.recipe.digest),
            *((name, run.fact(name)) for name in ("manifest", "tree", "commit", "workspace", "created")),
            ("created as", run.former_name),
            *((f"of {name}", ", ".join(filter(None, rest))) for name, *rest in self.components),
            ("python", f"{python.get('version', '')} {python.get('path', '')}".strip()),
            *((f"overruled {name}", why) for name, why in run.recipe.facts.get("overruled", {}).items()),
            *((f"accepted {name}", why) for name, why in run.recipe.facts.get("accepted_faults", {}).items()),
            ("record", str(run.folder)),
        ]
        width = max(len(label) for label, value in rows if value)
        for label, value in rows:
            if value:
                _WRAPPED.initial_indent = f"  {label:<{width}}  "
                _WRAPPED.subsequent_indent = " " * (width + 4)
                yield from _WRAPPED.wrap(value)


# -- words -------------------------------------------------------------------------------------------------


def _recorded_cause(error: Mapping[str, Any]) -> FailureCause:
    """Return the cause in a recorded error (what, where, why, hint)."""
    what, where, why, hint = (str(error.get(key, "")) for key in ("what", "where", "why", "hint"))
    return FailureCause(f"{what}. {why}".strip(), where, hint)


def _labelled(indent: int, **texts: str) -> Iterator[str]:
    """Yield texts under their labels; an empty one is left out."""
    for label, text in texts.items():
        if text:
            first, *rest = text.split("\n")
            yield f"{'':{indent}}{label + ':':<7}{first}"
            yield from (f"{'':{indent + 7}}{line}" for line in rest)


def _alarm_place(alarm: RecordedAlarm) -> str:
    step = "before the first step" if alarm.step is None else f"step {alarm.step}"
    return f"{step}, attempt {alarm.attempt}, {'FATAL ' if alarm.fatal else ''}{alarm.kind}"


def _attempt_words(one: AttemptChanges, run: RecordedRun) -> Iterator[str]:
    attempt = one.attempt
    yield from (str(attempt.number), run.state if attempt.outcome is None else one.outcome, one.steps_text)
    yield now(attempt.started)
    yield clock(run.seconds_of(attempt))
    hosts = [str(node.get("host", "?")) for node in attempt.nodes] or [str(attempt.host.get("hostname", ""))]
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    yield f"on {', '.join(hosts[:4])}{more}" if hosts[0] else ""


def _attempt_json(one: AttemptChanges) -> dict[str, Any]:
    """Return what an attempt recorded at its start and its end, and what it changed."""
    first, last = one.steps or (None, None)
    return {
        "number": one.attempt.number,
        **one.attempt.begun,
        **one.attempt.end,
        "first_step": first,
        "last_step": last,
        "changed": [value._asdict() for value in one.changed],
        "hosts": [str(node.get("host", "")) for node in one.attempt.nodes],
        "log": str(one.attempt.driver_log),
    }
