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


def test_canns_scheduler_drops_what_is_preempted() -> None:
    """verl_patches turn it on, whatever the recipe says; rollout.max_sequences is not read there."""
    tight = broken(CANN, "rollout.memory_share=0.7", "adaptations.kv-cache-room=false")["kv-cache-room"]
    assert tight.refuses and "which then drops it (vllm_ascend/core/scheduler.py" in tight.figures
    assert "rollout.max_sequences" not in tight.fix and "rollout.memory_share" in tight.fix
    waits = broken(CANN, "rollout.memory_share=0.7")["kv-cache-room"]
    assert waits.advice and "sequences wait for room" in waits.figures
    fewer = broken(CANN, "rollout.memory_share=0.7", "rollout.max_sequences=8")["kv-cache-room"]
    assert "for 64 sequences of 4096" in fewer.figures
    ample = broken(CANN, "rollout.max_batched_tokens=4096", "rollout.memory_share=0.7")["kv-cache-room"]
    assert ample.advice and "give way and are computed again" in ample.figures


def test_a_prompt_longer_than_canns_step(tmp_path: Path) -> None:
    found = broken(CANN, "rollout.max_batched_tokens=512")["prompt-exceeds-prefill-step"]
    assert found.refuses and found.fix == "set rollout.max_batched_tokens to 1024 or more"
    other = lay(tmp_path, {"vllm_ascend/core/scheduler.py": "FINISHED_IGNORED\n"})
    assert "prompt-exceeds-prefill-step" not in broken(CANN, "rollout.max_batched_tokens=512", code=other)
