"""The bundled recipes against the plan."""

from __future__ import annotations

import pytest

from npu_rl.data import bundled_recipes
from npu_rl.recipes.load import load_recipe
from npu_rl.recipes.plan.plan import plan_of
from npu_rl.recipes.plan.report import plan_text

# Rules that hold once the named adaptations are in the tree.
BY_ADAPTATION = {"prefill", "sleep mode without expandable segments"}


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_a_bundled_recipe_fits(name: str) -> None:
    made = plan_of(load_recipe(name))
    refused = {rule.name for rule in made.rules if rule.refuses}
    assert refused <= (BY_ADAPTATION if made.facts.npu else set())
    assert plan_text(made, None).count("\n  ok ") + len(refused) >= 7
