"""Rules on vllm-ascend's own features, by the pins of a manifest and by what a tree has."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.plan.plan import plan_of
from npu_rl.plan.rules.rule import Rule
from npu_rl.recipes.load_recipe import load_recipe
from tests.code_trees import lay

CANN, R1_ZERO = "deepseek-v3-cann-256die", "deepseek-r1-zero-256die"
SAMPLER = "vllm_ascend/patch/worker/patch_common/patch_sampler.py"
OWN_FILTER = "def _apply_top_k_top_p(\n    probs_sort, _ = probs.sort(dim=-1, descending=False)\n"
UPSTREAM = {SAMPLER: f"{OWN_FILTER}    logits = _apply_top_k_top_p(logits, k, p)\n"}
PATCHED = {
    SAMPLER: f"{OWN_FILTER}    logits = _apply_top_k_top_p(logits, *sampler_arguments.in_order(k, p))\n"
}
FUSED = {
    SAMPLER: "    probs_sort, _ = probs.sort(dim=-1, descending=False)\n    logits = apply_top_k_top_p(logits, k, p)\n"
}
ON, OFF = "env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1", "adaptations.sampler-arguments=false"


def broken(recipe: str, *changes: str, code: Path | None = None) -> dict[str, Rule]:
    made = plan_of(load_recipe(recipe, changes), code)
    return {rule.id: rule for rule in made.rules if not rule.ok}


def topk(recipe: str, *changes: str, code: Path | None = None) -> list[str]:
    return [name for name in broken(recipe, *changes, code=code) if name.startswith("topk-optimize")]


def test_the_optimised_filter_is_not_vllms() -> None:
    assert topk(CANN) == []
    found = broken(CANN, ON)["topk-optimize-filters-otherwise"]
    assert found.advice and found.fix == 'set env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE to "0"'
    assert "rollout.top_k 50, rollout.top_p 0.9" in found.figures
    assert topk(CANN, ON, "rollout.top_p=1.0") == topk(CANN, ON, "rollout.top_k=-1") == []


@pytest.mark.parametrize("one", [(), ("rollout.top_p=1.0",), ("rollout.top_k=-1",)])
def test_without_the_patch_k_and_p_change_places(one: tuple[str, ...]) -> None:
    found = broken(CANN, ON, OFF, *one)["topk-optimize-swapped"]
    assert found.refuses and found.certain
    assert "adaptation sampler-arguments off" in found.figures
    assert found.fix.endswith("or adaptations.sampler-arguments to true")
    assert topk(CANN, ON, OFF, "rollout.top_p=1.0", "rollout.top_k=-1") == ["topk-optimize-unused"]


def test_the_tree_decides(tmp_path: Path) -> None:
    """vllm-ascend 734eb68129 calls an operator of torch_npu instead, whose result nobody has seen."""
    upstream, patched, fused = (
        lay(tmp_path / name, files)
        for name, files in (("upstream", UPSTREAM), ("patched", PATCHED), ("fused", FUSED))
    )
    assert topk(CANN, ON, code=upstream) == ["topk-optimize-swapped"]
    assert topk(CANN, ON, code=patched) == ["topk-optimize-filters-otherwise"]
    assert topk(CANN, ON, OFF, code=patched) == ["topk-optimize-swapped"]
    assert topk(CANN, ON, code=fused) == []
    changes = ("rollout.top_k=50", "rollout.top_p=0.9", ON)
    assert topk(R1_ZERO, *changes) == topk(R1_ZERO, *changes, code=fused) == []
    assert topk(R1_ZERO, *changes, code=upstream) == ["topk-optimize-swapped"]
