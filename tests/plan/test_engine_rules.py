"""Rules on vllm-ascend's own features, by the pins of a manifest and by what a tree has."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.plan.rules.rule import Rule
from tests.code_trees import lay
from tests.plan import helpers
from tests.plan.helpers import plan

CANN, R1_ZERO, PLUGIN = "deepseek-v3-cann-256die", "deepseek-r1-zero-256die", "verl-npu-grpo-qwen3-235b"
SAMPLER = "vllm_ascend/patch/worker/patch_common/patch_sampler.py"
OWN_FILTER = "def _apply_top_k_top_p(\n    probs_sort, _ = probs.sort(dim=-1, descending=False)\n"
UPSTREAM = {SAMPLER: f"{OWN_FILTER}    logits = _apply_top_k_top_p(logits, k, p)\n"}
PATCHED = {
    SAMPLER: f"{OWN_FILTER}    logits = _apply_top_k_top_p(logits, *sampler_arguments.in_order(k, p))\n"
}
FUSED = {SAMPLER: "    logits = apply_top_k_top_p(logits, k, p)\n"}
ON, OFF = "env.VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1", "adaptations.sampler-arguments=false"
NO_K, NO_P = "rollout.top_k=-1", "rollout.top_p=1.0"


def broken(recipe: str, *changes: str, code: Path | None = None) -> dict[str, Rule]:
    return helpers.broken(plan(*changes, recipe=recipe, code=code))


def swapped(recipe: str, *changes: str, code: Path | None = None) -> bool:
    return "topk-optimize-swapped" in broken(recipe, *changes, code=code)


def test_without_the_patch_k_and_p_change_places() -> None:
    assert not swapped(CANN) and not swapped(CANN, ON) and not swapped(CANN, ON, OFF, NO_P, NO_K)
    for one in ((), (NO_P,), (NO_K,)):
        found = broken(CANN, ON, OFF, *one)["topk-optimize-swapped"]
        assert found.certain and found.fix.endswith("or set adaptations.sampler-arguments to true")


def test_the_tree_decides(tmp_path: Path) -> None:
    """vllm-ascend 734eb68129 calls an operator of torch_npu instead, whose result nobody has seen."""
    upstream, patched, fused = (
        lay(tmp_path / name, files)
        for name, files in (("upstream", UPSTREAM), ("patched", PATCHED), ("fused", FUSED))
    )
    assert swapped(CANN, ON, code=upstream) and swapped(CANN, ON, OFF, code=patched)
    assert not swapped(CANN, ON, code=patched) and not swapped(CANN, ON, code=fused)
    changes = ("rollout.top_k=50", "rollout.top_p=0.9", ON)
    assert not swapped(R1_ZERO, *changes) and swapped(R1_ZERO, *changes, code=upstream)


ROLLOUT = "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
RUNNER, CONFIG = "vllm_ascend/worker/model_runner_v1.py", "vllm_ascend/ascend_config.py"
AWAKE, EAGER = "rollout.free_cache=false", "rollout.eager=false"
ASYNC = "overrides.actor_rollout_ref.rollout.mode=async"
HYBRID_TP = "overrides.actor_rollout_ref.rollout.hybrid_tp"
ASKS = "def get_dp_padding(self,\n"
ASKS_AS_OFTEN = f"{ASKS}num_pad, num_tokens_across_dp_native = self.get_dp_padding(num_tokens)\n"
CACHES = {ROLLOUT: "enable_prefix_caching=True,\n"}
SYNC, MANAGER = "verl/workers/sharding_manager/fsdp_vllm.py", "verl/experimental/agent_loop/agent_loop.py"
PASSES = {ROLLOUT: 'additional_config["oproj_tensor_parallel_size"] = 2\n'}
READS = 'additional_config.get("oproj_tensor_parallel_size")\n'
IF_FREED = "if self.config.actor_rollout_ref.rollout.free_cache_engine:\n    self.wake_up()\n"
# Rule, recipe and changes that break it -> a tree with the code that it rests on, and trees without.
OF_TREES = {
    ("data-parallel-graphs", PLUGIN, EAGER): (
        {RUNNER: ASKS},
        [{RUNNER: ASKS_AS_OFTEN}, {RUNNER: "_sync_metadata_across_dp\n"}],
    ),
    ("stale-prefix-cache", PLUGIN, AWAKE): (
        {**CACHES, SYNC: "sleep"},
        [{**CACHES, SYNC: "reset_prefix_cache()"}],
    ),
    ("hybrid-tp-ignored", PLUGIN, f"{HYBRID_TP}.enabled=true"): (
        {**PASSES, CONFIG: ""},
        [{**PASSES, CONFIG: READS}],
    ),
    ("async-without-sleep", R1_ZERO, AWAKE, ASYNC): ({MANAGER: IF_FREED}, [{MANAGER: "self.wake_up()\n"}]),
}


@pytest.mark.parametrize(("broken_by", "trees"), OF_TREES.items(), ids=[row[0] for row in OF_TREES])
def test_rule_on_an_engine_follows_the_tree(
    tmp_path: Path, broken_by: tuple[str, ...], trees: tuple[dict[str, str], list[dict[str, str]]]
) -> None:
    name, recipe, *changes = broken_by
    assert name in broken(recipe, *changes, code=lay(tmp_path / "there", trees[0]))
    for number, files in enumerate(trees[1]):
        assert name not in broken(recipe, *changes, code=lay(tmp_path / str(number), files))


NZ, NZ_MODE = "env.VLLM_ASCEND_ENABLE_NZ=1", "rollout.engine_arguments.additional_config.weight_nz_mode"
CACHED, NOT_PATCHED = (
    "rollout.engine_arguments.enable_prefix_caching=true",
    "adaptations.rollout-engine-args=false",
)
DATA = "overrides.actor_rollout_ref.rollout.dp_model_parallel_size"
WAKE, NO_NZ = "set rollout.free_cache to true", 'set env.VLLM_ASCEND_ENABLE_NZ to "0"'
# Rule, recipe, changes -> the fix by the pins of the recipe's manifest; None where the rule holds.
BY_PINS = [
    # vllm-ascend 99bf25af76 has the dummy batch ask as often; 0.9.1rc2 asks once in both
    ("data-parallel-graphs", PLUGIN, (EAGER,), f"set rollout.eager to true, or {DATA} to 1"),
    ("data-parallel-graphs", PLUGIN, (EAGER, f"{DATA}=1"), None),
    ("data-parallel-graphs", R1_ZERO, (), None),
    # verl fixes prefix caching as on, and nothing but the engine's sleep empties it
    ("stale-prefix-cache", R1_ZERO, (AWAKE, CACHED), f"enable_prefix_caching to false, or {WAKE}"),
    ("stale-prefix-cache", R1_ZERO, (CACHED,), None),
    ("stale-prefix-cache", R1_ZERO, (AWAKE,), None),  # the patch has it off
    ("stale-prefix-cache", R1_ZERO, (AWAKE, NOT_PATCHED), WAKE),
    ("stale-prefix-cache", PLUGIN, (AWAKE,), WAKE),
    ("stale-prefix-cache", PLUGIN, (AWAKE, ASYNC), None),
    ("stale-prefix-cache", CANN, (AWAKE,), None),  # verl_patches' rollout has it off
    # verl_npu's sizes replace additional_config, and vllm-ascend 1de16ea reads other names there
    ("hybrid-tp-ignored", PLUGIN, (f"{HYBRID_TP}.enabled=yes",), f"remove {HYBRID_TP}"),
    ("hybrid-tp-ignored", PLUGIN, (f"{HYBRID_TP}.enabled=false",), None),
    ("hybrid-tp-ignored", R1_ZERO, (f"{HYBRID_TP}.enabled=true",), None),
    # verl's AgentLoopManager wakes it, which syncs the weights, only where free_cache_engine is true
    ("async-without-sleep", R1_ZERO, (AWAKE, ASYNC), WAKE),
    ("async-without-sleep", PLUGIN, (AWAKE, ASYNC), WAKE),
    ("async-without-sleep", PLUGIN, (ASYNC,), None),
    # a stack that lacks the patch, with a model that has a bias; its own Qwen has none
    ("router-bias-rounded", PLUGIN, ("model.architecture=deepseek-v3",), "npu-rl patches list"),
    ("router-bias-rounded", PLUGIN, (), None),
    ("router-bias-rounded", CANN, ("adaptations.router-bias=false",), None),  # a known fault
    *(
        ("sleep-mode-weight-format", recipe, changes, fix)
        for recipe in ("today-grpo-qwen3-30b", "newest-gspo-qwen3-30b")
        for changes, fix in (
            ((), None),
            ((NZ,), NO_NZ),
            ((f"{NZ_MODE}=1",), f"set {NZ_MODE} to 0"),
            ((NZ, f"{NZ_MODE}=0"), None),
            ((NZ, f"{NZ_MODE}=false"), None),
        )
    ),
    ("sleep-mode-weight-format", "today-grpo-qwen3-30b", (NZ, AWAKE), None),
]  # fmt: skip
NOT_CERTAIN = {"stale-prefix-cache", "hybrid-tp-ignored", "router-bias-rounded"}


@pytest.mark.parametrize(("name", "recipe", "changes", "fix"), BY_PINS)
def test_rule_on_an_engine_follows_the_pins(
    name: str, recipe: str, changes: tuple[str, ...], fix: str | None
) -> None:
    found = broken(recipe, *changes).get(name)
    assert (found is None) is (fix is None)
    if found is not None:
        assert found.refuses and found.certain is (name not in NOT_CERTAIN)
        assert found.fix.endswith(str(fix))
