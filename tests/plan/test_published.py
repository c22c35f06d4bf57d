"""Recipes as others published them, against the trees they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import R1_ZERO_PINS, unpatched, unpatched_cann
from tests.plan.helpers import HERE, skipped

R1_ASCEND, CANN = (str(HERE / "published" / f"{name}.yaml") for name in ("r1-ascend", "cann-recipes-train"))
GEMM = "plan.except.moe-grouped-gemm=our image has megatron.training"
# What upstream's own code computes wrongly, as it is without a patch.
FAULTS = {"known-fault"}


def test_verls_published_recipe_needs_one_exception() -> None:
    """Its MindSpeed is another: at this pin grouped experts import a package that the tree doesn't have."""
    judgement = judge(load_recipe(R1_ASCEND))
    assert [found.rule for found in judgement.errors] == ["moe-grouped-gemm"]
    assert [found.rule for found in judgement.findings[1:]] == ["router-groups"]
    overruled = judge(load_recipe(R1_ASCEND, [GEMM]))
    assert overruled.ok
    assert dict(overruled.overruled) == {"moe-grouped-gemm": "our image has megatron.training"}
    without = judge(load_recipe(R1_ASCEND, ["actor.transformer.moe_grouped_gemm=~"]))
    assert [found.rule for found in without.findings] == ["router-groups"]


@pytest.mark.upstreams
class TestUpstreams:
    """The same with the code they are for."""

    def test_verls(self, upstreams: Path, tmp_path: Path) -> None:
        tree = AssembledTree(unpatched(upstreams, R1_ZERO_PINS, tmp_path), "deepseek-r1-zero")
        judgement = judge(load_recipe(R1_ASCEND, [GEMM]), tree)
        assert {found.rule for found in judgement.errors} == {"known-fault"}
        assert "mindspeed/features_manager/moe/gmm.py:22" in str(judgement.findings)

    def test_canns(self, upstreams: Path, tmp_path: Path) -> None:
        tree = AssembledTree(unpatched_cann(upstreams, tmp_path), "deepseek-v3-cann")
        judgement = judge(load_recipe(CANN), tree)
        assert {found.rule for found in judgement.errors} == FAULTS, "and it needs no exception"
        facts = judgement.plan.facts
        assert facts.sizes.model.stage_layers == (7, 7, 8, 8, 8, 8, 8, 7)
        assert (
            facts.transformer("swap_optimizer") is True and facts.transformer("recompute_granularity") is None
        )
        # Nothing is recomputed as it is published, so it is tight.
        assert [found.rule for found in judgement.findings if found.rule.startswith("memory-")] == [
            "memory-update-tight"
        ]
        assert {"sleep-mode-expandable-segments", "mla-graph-needs-torchair"} <= skipped(
            judgement.plan
        ).keys()
