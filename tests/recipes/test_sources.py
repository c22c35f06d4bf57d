"""Tables of sources name the trainer's keys that npu-rl sets without the recipe's saying so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import Folders, _own_settings
from npu_rl.recipes.recipe.trainer_settings import list_settings

RECIPES = {
    "deepseek-r1-zero-256die": "deepseek-r1-zero-256die",
    "deepseek-v3-cann-256die": "deepseek-v3-cann-256die",
    "verl-npu-plugin": "verl-npu-grpo-qwen3-235b",
    "pai-deepseek-v3-128gpu": "pai-deepseek-v3-128gpu",
    "today": "today-gspo-qwen3-30b",
}


@pytest.mark.parametrize("table", RECIPES)
def test_keys_that_npu_rl_sets_itself_are_named(table: str) -> None:
    recipe = load_recipe(RECIPES[table]).recipe
    assert "seed" not in recipe.model_fields_set and recipe.seed == 1
    text = (data_root() / "recipes" / f"{table}.sources.md").read_text()
    named = re.search(r"npu-rl itself sets these.*?\n\n", text, re.DOTALL)
    assert named is not None
    seeds = [one.key for one in list_settings(recipe) if one.key.endswith("seed") and one.value == 1]
    assert len(seeds) >= 2
    folders = Folders(*[Path("/nowhere")] * 4, "key", *[Path("/nowhere")] * 2, ray=None, on_path=())
    own = [one.key for one in _own_settings(recipe, folders, "run", resume=False)]
    said = {"trainer.validation_data_dir", "trainer.rollout_data_dir", "trainer.logger"}  # by `logging`
    for key in [*seeds, *(key for key in own if key.startswith("trainer.") and key not in said)]:
        assert f"`{key}`" in named[0], key
