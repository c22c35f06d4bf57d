"""The name of a new run: the recipe's, or the next free one if that is taken."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.training.record.run_record import RunRecord


def with_free_name(
    loaded: LoadedRecipe, given: str, overrides: Sequence[str], runs: Path, notify: Callable[[str], None]
) -> LoadedRecipe:
    """Return a recipe with an unused name: NAME, NAME-2, NAME-3 and so on. A name= set by the user is kept.

    Args:
        loaded: The recipe.
        given: Its name or path, as the user wrote it.
        overrides: KEY=VALUE of the command line.
        runs: The folder of run records.
        notify: Receives the name that was chosen, and why.

    Raises:
        NpuRlError: If the run of the recipe's name goes on, and not on a CPU: both would use the same devices.
    """
    name = loaded.recipe.name
    if any(word.startswith("name=") for word in overrides) or not os.path.lexists(runs / name):
        return loaded
    free = next(f"{name}-{n}" for n in itertools.count(2) if not os.path.lexists(runs / f"{name}-{n}"))
    try:
        note = _note(_ended_run(runs, name), name, free, loaded.recipe.steps)
    except NpuRlError as running:
        if loaded.recipe.device != "cpu":
            running.why = f"{running.why} A second run would use the same devices."
            raise
        note = f"{running.what}, so this run is {free}; both share the cores of this host"
    notify(note)
    return replace(load_recipe(given, [*overrides, f"name={free}"]), free_name=True)


def _ended_run(runs: Path, name: str) -> RunRecord | None:
    """Return a run by name, after completing its record; None if there is none. Raises NpuRlError while it runs."""
    if not (runs / name / "run.json").is_file():
        return None
    record = RunRecord.load(runs, name)
    return RunRecord.open(runs, name) if record.is_incomplete or record.is_locked else record


def _note(there: RunRecord | None, name: str, free: str, steps: int) -> str:
    if there is None:
        return f"The folder of a run {name} is taken by something else, so this run is {free}"
    outcome = there.attempts[-1].outcome if there.attempts else None
    done = there.latest_checkpoint
    instead = f"; to go on with {name} from step {done} instead: --resume" if done and done < steps else ""
    return f"A run {name} exists ({outcome or 'not started'}), so this run is {free}{instead}"
