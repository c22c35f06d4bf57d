"""The bundled recipes against the plan."""

from __future__ import annotations

import re

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.plan_report import plan_text
from npu_rl.recipes.recipe.load_recipe import load_recipe

# As published: not all sequences fit at their full length, and the longest ones make an update tight.
ADVICE = {
    "verl-npu-grpo-qwen3-235b": {"kv-cache-room"},
    "verl-npu-dapo-qwen3-235b": {"kv-cache-room"},
    "verl-npu-dapo-qwen3-30b": {"kv-cache-room"},
    "verl-npu-dapo-qwen3-32b": {"kv-cache-room"},
    "verl-npu-dapo-qwen25-32b-20k": {"kv-cache-room", "memory-update-tight"},
    "verl-npu-dapo-qwen25-32b-4k": {"kv-cache-room", "generated-batch-is-trained"},
    # cann-recipes-train recomputes nothing, and says that it ran on 64 GB.
    "deepseek-v3-cann-256die": {"memory-update-tight"},
    "deepseek-v3-cann-256die-random-init": {"memory-update-tight"},
    # As published: sequences are packed up to more tokens than fit if all are of the full length.
    "today-gspo-qwen3-30b": {"memory-update-tight"},
    "newest-gspo-qwen3-30b": {"memory-update-tight"},
    "today-grpo-qwen3-235b": {"kv-cache-room", "overlong-prompts"},
    "today-dapo-deepseek-v3": {"kv-cache-room"},
    "pai-deepseek-v3-128gpu": {"overlong-prompts"},
    "pai-deepseek-v3-128gpu-mcore-250908": {"overlong-prompts"},
}


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_a_bundled_recipe_fits(name: str) -> None:
    loaded = load_recipe(name)
    judgement = judge(loaded)
    assert judgement.errors == ()
    if loaded.recipe.has_own_keys:
        assert judgement.findings == ()
        assert plan_text(judgement, None).startswith(f"{name}: no error; whether it fits is not counted.\n")
        return
    assert {found.rule for found in judgement.findings} <= ADVICE.get(name, {"kv-cache-room-tight"})
    assert re.match(rf"fits(:| unless)|{name} fits\.", plan_text(judgement, None))
