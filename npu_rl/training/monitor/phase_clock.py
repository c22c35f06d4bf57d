"""Time limits of a run's phases, based on the longest duration of each phase so far.

The phases of a step come from the trainer's own timers (injected/npu_rl_phases.py). Of a trainer without them each
step is one phase, and one beside which a checkpoint is saved or a validation is made is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from npu_rl.common.bounded import parse_json
from npu_rl.recipes.plan.phase_times import MOST

FLOOR = 120.0  # seconds that each phase has at least
_FACTOR = 3.0  # times the longest so far
_SLOW_FACTOR = 1.5  # times the longest so far, from where a phase is called slow
SLOW_FLOOR = 15.0  # seconds before a phase is called slow
_MOST_NAMES = 1000
_CLOCK_ERROR = 10.0  # seconds
BETWEEN = "between steps"


@dataclass(frozen=True)
class PhaseEvent:
    """The start or end of a trainer's phase. `time` is the trainer's clock in seconds since the epoch."""

    phase: str
    begins: bool
    time: float


@dataclass(frozen=True)
class PhaseWait:
    """The phase in progress.

    Attributes:
        waited: Seconds since it began, or since a phase inside of it ended.
        limit: Seconds after which it counts as hanging.
        longest: Seconds of the longest so far; None for the first of its name.
    """

    phase: str
    waited: float
    limit: float
    longest: float | None


def parse_phase(line: str) -> PhaseEvent | None:
    """Return the event of a line of phases.jsonl; None for any other line."""
    try:
        row = parse_json(line.encode())
        return PhaseEvent(str(row["phase"])[:100], bool(row["begins"]), float(row["time"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


@dataclass
class _Segment:
    """A named time segment on the clock of `now`. `time` is the trainer's clock, if known."""

    name: str
    since: float
    time: float | None = None
    told: bool = False
    next_note: float = 0.0


def _always_plain(step: int) -> str:
    del step
    return "step"


@dataclass
class PhaseClock:
    """A run's current phase, and the durations of earlier phases.

    Attributes:
        floor: Seconds that each phase has at least.
        step_kind: The name of the phase that leads to a step, of a trainer whose timers are not seen.
        first_limits: Seconds of the first of a phase, by its name; MOST of one that is not there.
    """

    floor: float = FLOOR
    step_kind: Callable[[int], str] = _always_plain
    first_limits: Mapping[str, float] = field(default_factory=dict)
    _longest: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _segment: _Segment | None = None
    _timed: bool = False

    def stage(self, name: str, now: float) -> None:
        """Begin a stage before the first step or after the last, such as "building the workers"."""
        if not self._open and (self._segment is None or self._segment.name != name):
            self._go_on(name, now, None)

    def event(self, event: PhaseEvent, now: float) -> None:
        """Handle an event of the trainer's timers."""
        self._timed = True
        if event.begins:
            self._open.append(event.phase)
        elif event.phase in self._open:
            position = len(self._open) - 1 - self._open[::-1].index(event.phase)
            del self._open[position:]
        self._go_on(self._open[-1] if self._open else BETWEEN, now, event.time)

    def step(self, step: int, now: float) -> None:
        """Handle the end of a step."""
        if not self._timed:
            self._go_on(self.step_kind(step + 1), now, None)

    def going_on(self, now: float) -> PhaseWait | None:
        """Return the phase in progress; None before the first."""
        if self._segment is None:
            return None
        return PhaseWait(
            self._segment.name,
            now - self._segment.since,
            self._limit(self._segment.name),
            self._longest.get(self._segment.name),
        )

    def late(self, now: float) -> PhaseWait | None:
        """Return the current phase once it exceeds its limit, only once per occurrence."""
        waits = self.going_on(now)
        if waits is None or self._segment is None or self._segment.told or waits.waited <= waits.limit:
            return None
        self._segment.told = True
        return waits

    def slow(self, now: float) -> PhaseWait | None:
        """Return the current phase when it takes longer than usual, and again each time its duration doubles."""
        waits = self.going_on(now)
        if waits is None or self._segment is None:
            return None
        first = max(SLOW_FLOOR, _SLOW_FACTOR * (waits.longest or 0.0))
        if waits.waited < max(first, self._segment.next_note):
            return None
        self._segment.next_note = 2 * waits.waited
        return waits

    def _limit(self, name: str) -> float:
        longest = self._longest.get(name)
        if longest is None:
            return max(self.floor, self.first_limits.get(name, MOST))
        return max(self.floor, _FACTOR * longest)

    def _go_on(self, name: str, now: float, time: float | None) -> None:
        before = self._segment
        if before is not None and (before.name in self._longest or len(self._longest) < _MOST_NAMES):
            took = _duration(before, now, time)
            self._longest[before.name] = max(self._longest.get(before.name, 0.0), took)
        self._segment = _Segment(name, now, time)


def _duration(segment: _Segment, now: float, time: float | None) -> float:
    """Return a segment's seconds by the trainer's clock if plausible, else by this process's clock."""
    ours = now - segment.since
    if segment.time is None or time is None:
        return ours
    own = time - segment.time
    return own if 0 <= own <= ours + _CLOCK_ERROR else ours
