"""The bundled recipes against the plan."""

from __future__ import annotations

import pytest

from npu_rl.bundled import bundled_recipes
from npu_rl.judgement.judge import judge
from npu_rl.judgement.plan_report import plan_text
from npu_rl.plan.plan import plan_of
from npu_rl.recipes.load_recipe import load_recipe


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_a_bundled_recipe_fits(name: str) -> None:
    judgement = judge(load_recipe(name))
    assert judgement.errors == ()
    # cann-recipes-train recomputes nothing, and says that it ran on 64 GB.
    tight = {"memory-update-tight"} if name.startswith("deepseek-v3-cann") else {"kv-cache-room-tight"}
    assert {found.rule for found in judgement.findings} <= tight
    assert sum(rule.ok for rule in judgement.plan.rules) >= 7
    assert plan_text(judgement, None).endswith(f"{name} fits.\n")


@pytest.mark.parametrize(
    ("slug", "rule"),
    [
        ("chunked-prefill-check", "prefill-budget"),
        ("rollout-offload", "sleep-mode-expandable-segments"),
    ],
)
def test_the_flagship_does_not_fit_without_an_adaptation(slug: str, rule: str) -> None:
    made = plan_of(load_recipe("deepseek-r1-zero-256die", [f"adaptations.{slug}=false"]))
    assert [found.id for found in made.rules if found.refuses] == [rule]
