"""The name of a new run: the recipe's, or the next free one if that is taken."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.training.record.run_errors import RunGoesOn, RunMayGoOnElsewhere
from npu_rl.training.record.run_record import LONGEST_NAME, RunRecord


def with_free_name(loaded: LoadedRecipe, runs: Path, notify: Callable[[str], None]) -> LoadedRecipe:
    """Return a recipe with an unused name: NAME, NAME-2, NAME-3 and so on. A name= set by the user is kept.

    Nothing is reserved: a run has its name once its record is created, and another may have been faster.

    Args:
        loaded: The recipe. If it has a name from here, that is replaced.
        runs: The folder of run records.
        notify: Receives the name that was chosen, and why.

    Raises:
        RunGoesOn: If one of these runs goes on, and not on a CPU: both would use the same devices.
    """
    given = loaded.overrides[:-1] if loaded.free_name else loaded.overrides
    if any(word.startswith("name=") for word in given):
        return loaded
    own = replace(load_recipe(loaded.given, given), stack=loaded.stack) if loaded.free_name else loaded
    name = own.recipe.name
    taken = list(itertools.takewhile(lambda one: os.path.lexists(runs / one), _names(name)))
    if not taken:
        return own
    free = next(itertools.islice(_names(name), len(taken), None))
    try:
        ended = [_ended_run(runs, one) for one in taken]
        note = _note(ended[0], name, free, own.recipe.steps)
    except RunGoesOn as running:
        if own.recipe.device != "cpu":
            running.why = f"{running.why} A second run would use the same devices."
            raise
        both = "" if isinstance(running, RunMayGoOnElsewhere) else "; both share the cores of this host"
        note = f"{running.what}, so this run is {free}{both}"
    notify(note)
    return replace(load_recipe(loaded.given, [*given, f"name={free}"]), stack=loaded.stack, free_name=True)


def _names(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name[: LONGEST_NAME - len(str(number)) - 1]}-{number}"


def _ended_run(runs: Path, name: str) -> RunRecord | None:
    """Return a run; None if what is there is not one, or damaged. Raises RunGoesOn if it may run."""
    try:
        record = RunRecord.load(runs, name)
        record.require_ended()
    except RunGoesOn:
        raise
    except NpuRlError:
        return None
    return record


def _note(there: RunRecord | None, name: str, free: str, steps: int) -> str:
    if there is None:
        return f"The folder of a run {name} is taken by something else, so this run is {free}"
    last = there.attempts[-1:]
    state = "not started" if not last else last[0].outcome or "killed"
    done = there.latest_checkpoint
    instead = f"; to continue {name} from step {done} instead: --resume" if done and done < steps else ""
    return f"A run {name} exists ({state}), so this run is {free}{instead}"
