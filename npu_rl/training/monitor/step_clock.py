"""The time limit of a run's next step: three times the longest step so far, and at least the recipe's seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from npu_rl.recipes.plan.phase_times import MOST, first_step_limit
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.recipe.schema import Recipe

FIRST_STEP = "first step"  # the stage that is a step as well
SLOW_FLOOR = 15.0  # seconds before a wait is reported as slow
_FACTOR = 3.0  # times the longest so far
_SLOW_FACTOR = 1.5  # times the longest so far, from where a wait is reported as slow


@dataclass(frozen=True)
class Wait:
    """The wait for a step, or for the end of a stage before the first or after the last.

    Attributes:
        what: `step 4`, or the stage.
        waited: Seconds.
        limit: Seconds after which the run counts as hanging.
        longest: Seconds of the longest such step so far; None before any.
    """

    what: str
    waited: float
    limit: float
    longest: float | None


@dataclass
class StepClock:
    """A run's current step or stage, and the longest step so far.

    Steps that save or validate are counted apart: in a healthy run they may take ten times as long as the others.

    Attributes:
        floor: Least seconds of any limit.
        first_limit: Seconds of the first step, and of each stage.
        is_long: Whether a step saves or validates.
    """

    floor: float = 120.0
    first_limit: float = MOST
    is_long: Callable[[int], bool] = lambda step: False  # noqa: ARG005
    _longest: dict[bool, float] = field(default_factory=dict)
    _what: str = ""
    _long: bool | None = None  # None for a stage, whose duration says nothing about steps
    _since: float = 0.0
    _is_reported: bool = False
    _next_note: float = 0.0

    def stage(self, name: str, now: float) -> None:
        """Begin a stage before the first step or after the last, such as "building the workers"."""
        if name != self._what:
            self._begin(name, False if name == FIRST_STEP else None, now)

    def step(self, step: int, now: float) -> None:
        """Handle the end of a step, and begin the wait for the next."""
        if self._long is not None:
            self._longest[self._long] = max(self._longest.get(self._long, 0.0), now - self._since)
        self.wait_for(step + 1, now)

    def wait_for(self, step: int, now: float) -> None:
        """Begin the wait for a step, whatever was waited for before."""
        self._begin(f"step {step}", self.is_long(step), now)

    def wait(self, now: float) -> Wait:
        """Return the current wait."""
        longest = None if self._long is None else self._longest.get(self._long)
        limit = max(self.floor, self.first_limit if longest is None else _FACTOR * longest)
        return Wait(self._what, now - self._since, limit, longest)

    def late(self, now: float) -> Wait | None:
        """Return the current wait once it exceeds its limit, only once."""
        wait = self.wait(now)
        if self._is_reported or wait.waited <= wait.limit:
            return None
        self._is_reported = True
        return wait

    def slow(self, now: float) -> bool:
        """Return whether the wait has just become longer than usual, or has doubled since."""
        wait = self.wait(now)
        if wait.waited < max(SLOW_FLOOR, _SLOW_FACTOR * (wait.longest or 0.0), self._next_note):
            return False
        self._next_note = 2 * wait.waited
        return True

    def _begin(self, what: str, long: bool | None, now: float) -> None:
        self._what, self._long, self._since = what, long, now
        self._is_reported, self._next_note = False, 0.0


def step_clock(recipe: Recipe, plan: Plan | None = None) -> StepClock:
    """Return the clock for a run of the recipe; on a CPU, as in a rehearsal, the plan's estimates don't hold."""
    every = [recipe.checkpoint.every or 0]
    if not recipe.has_own_keys:
        every.append(recipe.logging.validate_every or 0)

    def is_long(step: int) -> bool:
        # A trainer writes the line of a step before or after it saves, so the wait for the next one may have the save.
        return step == recipe.steps or any(n > 0 and (step % n == 0 or (step - 1) % n == 0) for n in every)

    estimates = {} if plan is None or recipe.device == "cpu" else plan.phase_times
    return StepClock(recipe.watch.phase_timeout, first_step_limit(estimates), is_long)
