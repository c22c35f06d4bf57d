"""The clock of a recipe's phases: their time limits, and the steps that save or validate."""

from __future__ import annotations

from npu_rl.recipes.plan.phase_times import first_limits
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.training.monitor.phase_clock import PhaseClock


def phase_clock(recipe: Recipe, plan: Plan | None = None) -> PhaseClock:
    """Return the clock for a run of the recipe; on a CPU, as in a rehearsal, the plan's estimates don't hold."""
    every = {"save": recipe.checkpoint.every or 0}
    if not recipe.has_own_keys:
        every["validation"] = recipe.logging.validate_every or 0

    def step_kind(step: int) -> str:
        # A trainer writes the line of a step before or after it saves, so the wait for the next one may have the save.
        extras = [
            name
            for name, steps in every.items()
            if steps > 0 and (step % steps == 0 or (step - 1) % steps == 0)
        ]
        return " with ".join(["step", " and ".join(extras)] if extras else ["step"])

    limits = {} if plan is None or recipe.device == "cpu" else first_limits(plan.phase_times)
    return PhaseClock(recipe.watch.phase_timeout, step_kind, limits)
