"""Tables of sources: every value of a recipe, and the trainer's keys that npu-rl sets without its saying so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import Folders, _own_settings
from npu_rl.recipes.recipe.trainer_settings import list_settings
from tests.recipes.source_tables import sources, table, written

RECIPES = {
    "deepseek-r1-zero-256die": "deepseek-r1-zero-256die",
    "deepseek-v3-cann-256die": "deepseek-v3-cann-256die",
    "verl-npu-plugin": "verl-npu-grpo-qwen3-235b",
    "pai-deepseek-v3-128gpu": "pai-deepseek-v3-128gpu",
    "today": "today-gspo-qwen3-30b",
}


# Recipe -> its sources file, whether that has a table for each of several recipes, and what a source may be.
TABLES = {
    "deepseek-r1-zero-256die": ("deepseek-r1-zero-256die", False, {"document", "published", "ours"}),
    "deepseek-r1-zero-256die-published": (
        "deepseek-r1-zero-256die-published",
        False,
        {"document", "published", "ours"},
    ),
    "deepseek-v3-cann-256die": ("deepseek-v3-cann-256die", False, {"script", "tree", "ours"}),
    "pai-deepseek-v3-128gpu": ("pai-deepseek-v3-128gpu", False, {"script", "ours"}),
    "mindspeed-rl-grpo-qwen25-7b": ("mindspeed-rl-grpo", True, {"yaml", "launch", "ours"}),
    **{
        name: (
            "verl-npu-plugin" if name.startswith("verl-npu-") else "today",
            True,
            {"script", "launch", "ours"},
        )
        for name in bundled_recipes()
        if name.startswith(("verl-npu-", "today-", "newest-"))
    },
}


@pytest.mark.parametrize("name", TABLES)
def test_every_value_has_its_source_and_nothing_else_has(name: str) -> None:
    file, several, allowed = TABLES[name]
    values, rows = written(name), table(file, name if several else "")
    if file == "verl-npu-plugin":
        values.pop("extends", None)
    assert {key: value for key, value, *_ in rows} == values
    assert [key for key, *_ in rows] == list(values), "in the recipe's order, each once"
    assert {source for _, _, source, _ in rows} <= allowed
    assert [key for key, _, source, note in rows if source == "ours" and not note] == []


@pytest.mark.parametrize("table", RECIPES)
def test_keys_that_npu_rl_sets_itself_are_named(table: str) -> None:
    recipe = load_recipe(RECIPES[table]).recipe
    assert "seed" not in recipe.model_fields_set and recipe.seed == 1
    named = re.search(r"npu-rl itself sets these.*?\n\n", sources(table), re.DOTALL)
    assert named is not None
    seeds = [one.key for one in list_settings(recipe) if one.key.endswith("seed") and one.value == 1]
    assert len(seeds) >= 2
    folders = Folders(*[Path("/nowhere")] * 4, "key", *[Path("/nowhere")] * 2, ray=None, on_path=())
    own = [one.key for one in _own_settings(recipe, folders, "run", resume=False)]
    said = {"trainer.validation_data_dir", "trainer.rollout_data_dir", "trainer.logger"}  # by `logging`
    for key in [*seeds, *(key for key in own if key.startswith("trainer.") and key not in said)]:
        assert f"`{key}`" in named[0], key
