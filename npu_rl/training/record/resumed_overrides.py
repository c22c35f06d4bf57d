"""`--resume` takes the recipe's overrides from the last attempt, and says what has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npu_rl.common.bounded import parse_yaml
from npu_rl.common.errors import UsageError
from npu_rl.common.masking import MASK, masked_argument
from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.overrides import parse_overrides
from npu_rl.training.record.differing_values import differing, flat
from npu_rl.training.record.recorded_attempt import RecordedAttempt
from npu_rl.training.record.run_record import RunRecord


def resumed_overrides(loaded: LoadedRecipe, given: Sequence[str], runs: Path) -> list[str]:
    """Return the overrides of an attempt that resumes a run: its last attempt's, and those that are given now.

    Args:
        loaded: The recipe, without overrides.
        given: KEY=VALUE arguments of this command; `name=` says which run.
        runs: The folder of run records.

    Raises:
        NoSuchRun: If the run is missing.
        UsageError: If the record has a secret masked that is not given again.
    """
    now = {_key(word): word for word in given}
    name = now.get("name", f"name={loaded.recipe.name}").partition("=")[2]
    last = last_attempt(runs, name)
    before = (
        {} if last is None else {_key(word): word for word in last.recipe.overrides if _key(word) != "name"}
    )
    masked = [word for key, word in before.items() if MASK in word and key not in now]
    if masked:
        raise UsageError(
            f"{_key(masked[0])} of run {name} is a secret, which its record does not have",
            where=masked[0],
            hint=f"Give it again: {_key(masked[0])}=…",
        )
    own = [] if name == loaded.recipe.name or "name" in now else [f"name={name}"]
    return [*({**before, **now}).values(), *own]


def last_attempt(runs: Path, name: str) -> RecordedAttempt | None:
    """Return the last attempt of a run; None if it has none."""
    return next(reversed(RunRecord.load(runs, name).attempts), None)


def changes_since(last: RecordedAttempt, loaded: LoadedRecipe) -> str:
    """Return the values of a recipe that differ from an attempt's, as "KEY OLD -> NEW, KEY OLD -> NEW"; "" if none."""
    now = parse_yaml(recipe_yaml(loaded))
    return ", ".join(masked_argument(str(one)) for one in differing(flat(last.recipe_data), flat(now)))


def _key(override: str) -> str:
    return ".".join(parse_overrides([override.replace(MASK, "masked")])[0].path)  # the mask is no YAML
