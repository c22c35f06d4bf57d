"""The page of one run: outcome, curve, phases, alarms, attempts, provenance and next commands."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.training.browse.next_commands import next_commands
from npu_rl.training.browse.rehearsal_failures import rehearsal_failures
from npu_rl.training.browse.run_rows import run_row, steps_text
from npu_rl.training.monitor.explain_failure import explain, last_lines
from npu_rl.training.monitor.metrics import phase_seconds, rewards, seconds, throughput
from npu_rl.training.monitor.plot import final_curve
from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.attempt import now
from npu_rl.training.record.lost_nodes import lost_nodes, lost_nodes_hint
from npu_rl.training.record.recorded_attempt import RecordedAlarm, RecordedAttempt
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.record.rehearsal_end import rehearsal_error

_RECENT = 50  # last steps whose medians are shown
_ALARMS = 20  # causes, of the text
_TIED = "\N{NO-BREAK SPACE}"  # between a name and its figure, which one line keeps together


@dataclass(frozen=True)
class FailureCause:
    """The cause of an attempt's failure, as far as its logs show it."""

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
        """Cause of the last attempt's failure; None if it didn't fail, or its logs don't show the cause."""
        last, failures = self.run.last, rehearsal_failures(self.run.verdict)
        if self.run.state != "failed":
            return None
        error = {} if self.run.verdict else rehearsal_error(self.run.folder)
        if error:
            return _refusal(error)
        if failures:  # which name what the log shows in many lines
            return FailureCause("\n".join(failures), str(self.run.folder / "rehearsal.json"), "")
        return (
            None
            if last is None or last.outcome == "done"
            else _failure_of(last, one_machine=self.run.nodes == 1)
        )

    @cached_property
    def next(self) -> list[str]:
        """Useful commands for the run's current state."""
        return next_commands(self.run, self.given, self.workspace)

    def to_json(self) -> dict[str, Any]:
        """Return the page as documented in docs/json.md."""
        run = self.run
        dies = run.dies_per_card
        return {
            **run_row(run),
            "unproven": run.unproven,
            "goal": run.recipe.goal,
            "curve": [[step, value] for step, value in rewards(run.points)],
            "phases": {name: round(value, 4) for name, value in self.phases.items()},
            "tokens_per_second": None
            if self.tokens is None
            else {"device": round(self.tokens, 1), "card": round(self.tokens * dies, 1)},
            "alarms": [alarm.to_json() for alarm in run.alarms],
            "failure": None if self.failure is None else dict(vars(self.failure)),
            "attempts": [_attempt_json(attempt) for attempt in run.attempts],
            "provenance": self._provenance(),
            "next": self.next,
        }

    def text(self) -> str:
        """Return the page as lines."""
        run = self.run
        curve = final_curve(run.points, run.recipe.goal)
        parts = [
            list(self._head()),
            [curve]
            if curve
            else ["There is no reward to draw yet." if run.is_running else "There is no reward."],
            list(self._speed()),
            list(self._alarm_lines()),
            list(self._failure_lines()),
            list(self._attempt_lines()),
            list(self._provenance_lines()),
            ["next", *(f"  {line}" for line in self.next)] if self.next else [],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def _head(self) -> Iterator[str]:
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
        yield ", ".join(words)
        if run.unproven is not None:
            yield f"UNPROVEN: {run.unproven}"
        if run.begun_on:
            yield f"Its state is unknown, begun on {run.begun_on}: it has no end, and runs there or was killed"

    def _speed(self) -> Iterator[str]:
        if not self.phases:
            return
        yield f"phases (seconds, median of the last {min(len(self.run.points), _RECENT)} steps)"
        figures = [f"{name} {value:.3g}".replace(" ", _TIED) for name, value in self.phases.items()]
        lines = wrap("  ".join(figures), 78, break_long_words=False, break_on_hyphens=False)
        yield from (f"  {line.replace(_TIED, ' ')}" for line in lines)
        if self.tokens is not None:
            dies = self.run.dies_per_card
            card = f", {self.tokens * dies:.0f} per card" if dies > 1 else ""
            yield f"  tokens per second: {self.tokens:.0f} per device{card}"

    def _alarm_lines(self) -> Iterator[str]:
        causes = _by_cause(self.run.alarms)
        if not causes:
            return
        yield "alarms"
        for first, *again in causes[:_ALARMS]:
            yield f"  {_alarm_place(first)}: {first.message}"
            yield from _labelled(4, why=first.cause, where=first.place, next=first.hint)
            if again:
                yield from _labelled(
                    4, often=f"{len(again) + 1} times, the last at {_alarm_place(again[-1])}"
                )
        if len(causes) > _ALARMS:
            more = sum(map(len, causes[_ALARMS:]))
            yield f"  and {more} more, of {counted(len(causes) - _ALARMS, 'other cause')}"

    def _failure_lines(self) -> Iterator[str]:
        if self.failure is not None:
            yield "failure"
            yield from _labelled(2, why=self.failure.cause, where=self.failure.where, next=self.failure.hint)

    def _attempt_lines(self) -> Iterator[str]:
        if self.run.attempts:
            yield "attempts"
        for attempt in self.run.attempts:
            yield "  " + "  ".join(filter(None, _attempt_words(attempt, self.run)))

    def _provenance(self) -> dict[str, Any]:
        run, last = self.run, self.run.last
        recipe = run.recipe.facts
        return {
            **{name: run.facts.get(name) for name in ("commit", "workspace", "interpreter")},
            **{name: recipe.get(name) for name in ("recipe_digest", "recipe_files", "overrides", "drift")},
            **{name: recipe[name] for name in ("overruled", "accepted_faults") if name in recipe},
            "lock_components": {name: _component(one) for name, one in _components(run)},
            "command": list(last.command) if last else [],
            "environment": last.environment if last else {},
            "host": dict(last.host) if last else {},
        }

    def _provenance_lines(self) -> Iterator[str]:
        run = self.run
        interpreter = run.facts.get("interpreter")
        python = interpreter if isinstance(interpreter, dict) else {}
        yield "provenance"
        rows = [
            ("recipe", " ".join((run.recipe.argument, *run.recipe.overrides))),
            ("digest", run.recipe.digest),
            ("manifest", run.fact("manifest")),
            ("tree", run.fact("tree")),
            ("commit", run.fact("commit")),
            *((f"of {name}", _component_text(one)) for name, one in _components(run)),
            ("workspace", run.fact("workspace")),
            ("python", " ".join(str(python[key]) for key in ("version", "path") if key in python)),
            ("packages", ", ".join(f"{name} {version}" for name, version in run.packages.items())),
            *(
                (name.replace("_", " "), f"{key}: {reason}")
                for name in ("overruled", "accepted_faults")
                for key, reason in _items(run.recipe.facts.get(name))
            ),
            (
                "created",
                " ".join(filter(None, (run.fact("created"), run.former_name and f"as {run.former_name}"))),
            ),
            ("record", str(run.folder)),
        ]
        width = max(len(label) for label, value in rows if value)
        for label, value in rows:
            if value:
                yield from _folded(f"  {label:<{width}}  ", value)


# -- words -------------------------------------------------------------------------------------------------


def _refusal(error: Mapping[str, Any]) -> FailureCause:
    """Return the cause in a recorded error (what, where, why, hint)."""
    what, where, why, hint = (str(error.get(key, "")) for key in ("what", "where", "why", "hint"))
    return FailureCause(f"{what}. {why}".strip(), where, hint)


def _failure_of(last: RecordedAttempt, *, one_machine: bool) -> FailureCause | None:
    told = last.refused or last.error
    if told:
        return _refusal(told)
    lost = lost_nodes(last.folder)
    if lost:
        cause = f"{counted(len(lost), 'node')} left the Ray cluster:\n" + "\n".join(lost)
        return FailureCause(cause, str(last.driver_log), lost_nodes_hint(one_machine=one_machine))
    logs = [last.driver_log, *sorted((last.folder / "workers").rglob("*.err"))]
    found = explain(logs, 1 if last.driver_code is None else last.driver_code, one_machine=one_machine)
    if found is None:
        return _unexplained(last)
    return FailureCause(found.cause, f"{found.file}:{found.line}", found.hint)


def _unexplained(last: RecordedAttempt) -> FailureCause:
    """Return the end of the driver's own log, of a failure that neither the record nor a known symptom explains."""
    lines = last_lines(last.driver_log)
    if not lines:
        return FailureCause(f"{_status(last)}, and logged nothing.", str(last.driver_log), "")
    cause = "\n".join((f"{_status(last)}, with no error that npu-rl knows. Its last lines:", *lines))
    return FailureCause(cause, str(last.driver_log), "Read the log upwards from its end.")


def _status(last: RecordedAttempt) -> str:
    code = last.driver_code
    if code is None:
        return (
            "npu-rl ended the attempt before the trainer did"
            if last.started_driver
            else "The trainer was not started"
        )
    return f"The trainer ended with {f'signal {-code}' if code < 0 else f'exit status {code}'}"


def _by_cause(alarms: Sequence[RecordedAlarm]) -> list[list[RecordedAlarm]]:
    """Return the alarms of each cause, in the order of their first ones."""
    found: dict[tuple[str, str], list[RecordedAlarm]] = {}
    for alarm in alarms:
        found.setdefault((alarm.kind, alarm.cause), []).append(alarm)
    return list(found.values())


def _folded(head: str, value: str) -> Iterator[str]:
    """Yield a value beside its label; a list of several on lines of 80 columns."""
    lines = (
        wrap(value, 80 - len(head), break_long_words=False, break_on_hyphens=False)
        if ", " in value
        else [value]
    )
    yield head + lines[0]
    yield from (" " * len(head) + line for line in lines[1:])


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


def _attempt_words(attempt: RecordedAttempt, run: RecordedRun) -> Iterator[str]:
    yield str(attempt.number)
    live = run.is_running and attempt is run.last
    outcome = attempt.outcome or run.state
    yield f"{outcome} ({attempt.signal})" if attempt.signal else outcome
    steps = [point.step for point in attempt.points]
    yield f"steps {min(steps)}-{max(steps)}" if steps else "no step"
    yield now(attempt.started)
    yield clock(attempt.seconds(run.read_at)) if live or attempt.ended is not None else ""
    hosts = [str(node.get("host", "?")) for node in attempt.nodes] or [str(attempt.host.get("hostname", ""))]
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    yield f"on {', '.join(hosts[:4])}{more}" if hosts[0] else ""
    yield " ".join(attempt.recipe.overrides)


def _attempt_json(attempt: RecordedAttempt) -> dict[str, Any]:
    steps = [point.step for point in attempt.points]
    return {
        "number": attempt.number,
        "outcome": attempt.outcome,
        "code": attempt.code,
        "signal": attempt.signal,
        "first_step": min(steps, default=None),
        "last_step": max(steps, default=None),
        "recipe_digest": attempt.recipe.digest,
        "overrides": list(attempt.recipe.overrides),
        "goal": attempt.recipe.goal,
        "started": now(attempt.started),
        "ended": None if attempt.ended is None else now(attempt.ended),
        "hosts": [str(node.get("host", "")) for node in attempt.nodes],
        "log": str(attempt.driver_log),
    }


def _components(run: RecordedRun) -> list[tuple[str, dict[str, Any]]]:
    found = run.lock.get("components")
    return [(str(name), one) for name, one in _items(found) if isinstance(one, dict)]


def _component(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "pin": _pin(one),
        "merges": [_merge(merge) for merge in _dicts(one.get("merges"))],
        "patches": [str(patch.get("name")) for patch in _dicts(one.get("patches"))],
    }


def _component_text(one: dict[str, Any]) -> str:
    found = _component(one)
    merges = f", merged: {', '.join(found['merges'])}" if found["merges"] else ""
    patches = f", patches: {', '.join(found['patches'])}" if found["patches"] else ""
    return f"{found['pin']}{merges}{patches}"


def _pin(one: dict[str, Any]) -> str:
    pin = one.get("pin")
    if isinstance(pin, str):
        return pin
    return next((str(source["pypi"]) for source in _dicts(one.get("sources")) if source.get("pypi")), "?")


def _merge(merge: dict[str, Any]) -> str:
    return " ".join(str(merge[key]) for key in ("ref", "head") if merge.get(key))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []
