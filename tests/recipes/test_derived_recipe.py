"""A recipe scaled down is written down as it ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.recipes.recipe.derived_recipe import derive_recipe
from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.rehearsal.scale_recipe import scale_recipe
from npu_rl.rehearsal.scale_rollout import scale_for_rollout
from tests.config.documents import ids, write
from tests.recipes.examples import GOOD, open_mapping


def read_back(loaded: LoadedRecipe, folder: Path) -> Recipe:
    return load_recipe(write(folder / "resolved.yaml", recipe_yaml(loaded))).recipe


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_what_is_written_is_what_ran(name: str, tmp_path: Path) -> None:
    loaded = load_recipe(name)
    if loaded.recipe.has_own_keys:
        pytest.skip("nothing is scaled down: its trainer's keys are its own")
    for number, small in enumerate(
        (scale_recipe(loaded.recipe, "small"), scale_for_rollout(loaded.recipe, "small", "expert"))
    ):
        changed = derive_recipe(loaded, small, "scaled down")
        assert changed.recipe is small
        assert changed.digest != loaded.digest
        (tmp_path / str(number)).mkdir()
        assert read_back(changed, tmp_path / str(number)) == small.model_copy(update={"extends": None})


@pytest.mark.parametrize("path", GOOD, ids=ids)
def test_an_unchanged_recipe_keeps_its_texts_and_origins(path: Path) -> None:
    loaded = load_recipe(
        str(path), ["env.MORE=1", f"{open_mapping(path)}.x='1'", "a.b=[x, {y: '2'}, [], {}]"]
    )
    same = derive_recipe(loaded, loaded.recipe, "nobody")
    assert recipe_yaml(same) == recipe_yaml(loaded)
    assert same.digest == loaded.digest
