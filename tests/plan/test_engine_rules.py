"""Rules on vllm-ascend's own features, by the pins of a manifest and by what a tree has."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.plan.rules.rule import Rule
from tests.code_trees import lay
from tests.plan.helpers import plan

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
    return {rule.id: rule for rule in plan(*changes, recipe=recipe, code=code).rules if not rule.ok}


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
    assert "which then drops it (vllm_ascend/core/scheduler.py" in tight.figures
    waits = broken(CANN, "rollout.memory_share=0.7")["kv-cache-room"]
    assert waits.advice and "or wait for room" in waits.figures
    fewer = broken(CANN, "rollout.memory_share=0.7", "rollout.max_sequences=8")["kv-cache-room"]
    assert "for 64 sequences of 4096" in fewer.figures
    ample = broken(CANN, "rollout.max_batched_tokens=4096", "rollout.memory_share=0.7")["kv-cache-room"]
    assert ample.advice and "preempted and computed again" in ample.figures


def test_a_prompt_longer_than_canns_step(tmp_path: Path) -> None:
    found = broken(CANN, "rollout.max_batched_tokens=512")["prompt-exceeds-prefill-step"]
    assert found.refuses and found.fix == "set rollout.max_batched_tokens to 1024 or more"
    other = lay(tmp_path, {"vllm_ascend/core/scheduler.py": "FINISHED_IGNORED\n"})
    assert "prompt-exceeds-prefill-step" not in broken(CANN, "rollout.max_batched_tokens=512", code=other)


OFFLOAD = "adaptations.rollout-offload=false"
ROLLOUT = "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
WORKER, RUNNER = "vllm_ascend/worker/worker_v1.py", "vllm_ascend/worker/model_runner_v1.py"
PLUGIN, AWAKE = "verl-npu-grpo-qwen3-235b", "rollout.free_cache=false"
CALM = "env.PYTORCH_NPU_ALLOC_CONF=expandable_segments:False"
ASYNC = "overrides.actor_rollout_ref.rollout.mode=async"
HYBRID_TP = "actor_rollout_ref.rollout.hybrid_tp"
SLEEPS = "allocator.sleep(offload_tags=tuple())\n"
LEVEL_2 = "self.inference_engine.sleep(level=2)\n"
ASKS = "def get_dp_padding(self,\n"
ASKS_AS_OFTEN = f"{ASKS}num_pad, num_tokens_across_dp_native = self.get_dp_padding(num_tokens)\n"
CACHES = {ROLLOUT: "enable_prefix_caching=True,\n"}
SYNC, MANAGER = "verl/workers/sharding_manager/fsdp_vllm.py", "verl/experimental/agent_loop/agent_loop.py"
PASSES, CONFIG = 'additional_config["oproj_tensor_parallel_size"] = 2\n', "vllm_ascend/ascend_config.py"
READS = 'additional_config.get("oproj_tensor_parallel_size")\n'
IF_FREED = "if self.config.actor_rollout_ref.rollout.free_cache_engine:\n"
# Rule, recipe and changes that break it -> trees by name, and whether each has the code that the rule rests on.
OF_TREES = {
    ("sleep-mode-loses-buffers", R1_ZERO, OFFLOAD, CALM): {
        "faulty": ({ROLLOUT: LEVEL_2, WORKER: SLEEPS}, True),
        "level 1": ({ROLLOUT: LEVEL_2.replace("2", "1"), WORKER: SLEEPS}, False),
        "fixed": ({ROLLOUT: LEVEL_2, WORKER: f"self._sleep_saved_buffers = {{}}\n{SLEEPS}"}, False),
    },
    ("data-parallel-graphs", PLUGIN, "rollout.eager=false"): {
        "pin": ({RUNNER: ASKS}, True),
        "fixed": ({RUNNER: ASKS_AS_OFTEN}, False),
        "later": ({RUNNER: "_sync_metadata_across_dp\n"}, False),
    },
    ("stale-prefix-cache", PLUGIN, AWAKE): {
        "pin": ({**CACHES, SYNC: "sleep"}, True),
        "resets": ({**CACHES, SYNC: "reset_prefix_cache()"}, False),
    },
    ("hybrid-tp-ignored", PLUGIN, f"overrides.{HYBRID_TP}.enabled=true"): {
        "pin": ({ROLLOUT: PASSES, CONFIG: ""}, True),
        "reads it": ({ROLLOUT: PASSES, CONFIG: READS}, False),
    },
    ("async-without-sleep", R1_ZERO, AWAKE, ASYNC): {
        "pin": ({MANAGER: f"{IF_FREED}    self.wake_up()\n"}, True),
        "always": ({MANAGER: "self.wake_up()\n"}, False),
    },
}


@pytest.mark.parametrize(("broken_by", "trees"), OF_TREES.items(), ids=[row[0] for row in OF_TREES])
def test_rule_on_an_engine_follows_the_tree(
    tmp_path: Path, broken_by: tuple[str, ...], trees: dict[str, tuple[dict[str, str], bool]]
) -> None:
    name, recipe, *changes = broken_by
    for kind, (files, has_code) in trees.items():
        assert (name in broken(recipe, *changes, code=lay(tmp_path / kind, files))) is has_code, kind


def test_sleep_mode_at_level_2_loses_buffers() -> None:
    """verl 796871d sleeps at level 1; vllm-ascend 01592515b8 saves the buffers."""
    name = "sleep-mode-loses-buffers"
    found = broken(R1_ZERO, OFFLOAD, CALM)[name]
    assert found.refuses and found.certain and found.fix == "set adaptations.rollout-offload to true"
    assert name not in broken(R1_ZERO) and name not in broken(R1_ZERO, OFFLOAD, CALM, AWAKE)


def test_graphs_with_data_parallel_engines_hang() -> None:
    """vllm-ascend 99bf25af76 has the dummy batch ask as often; 0.9.1rc2 asks once in both."""
    name, graphs = "data-parallel-graphs", "rollout.eager=false"
    key = "overrides.actor_rollout_ref.rollout.dp_model_parallel_size"
    found = broken(PLUGIN, graphs)[name]
    assert found.refuses and found.certain
    assert f"rollout.eager false, {key} 8" in found.figures
    assert found.fix == f"set rollout.eager to true, or {key} to 1"
    assert name not in broken(PLUGIN) and name not in broken(PLUGIN, graphs, f"{key}=1")
    assert name not in broken(R1_ZERO)


def test_prefixes_of_earlier_weights_stay_cached() -> None:
    """verl fixes prefix caching as on, and nothing but the engine's sleep empties it."""
    name = "stale-prefix-cache"
    on = "rollout.engine_arguments.enable_prefix_caching=true"
    found = broken(R1_ZERO, AWAKE, on)[name]
    assert found.refuses and not found.certain
    assert found.figures.startswith("free_cache false, prefix caching on")
    assert found.fix == (
        "set rollout.engine_arguments.enable_prefix_caching to false, or set rollout.free_cache to true"
    )
    assert name not in broken(R1_ZERO, on) and name not in broken(R1_ZERO, AWAKE)  # the patch has it off
    off = "adaptations.rollout-engine-args=false"
    assert broken(R1_ZERO, AWAKE, off)[name].fix == "set rollout.free_cache to true"
    assert name in broken(PLUGIN, AWAKE) and name not in broken(PLUGIN)
    assert name not in broken(CANN, AWAKE)  # verl_patches' rollout has it off


def test_tensor_parallelism_of_single_layers_that_nothing_reads() -> None:
    """verl_npu's sizes replace additional_config, and vllm-ascend 1de16ea reads other names there."""
    name = "hybrid-tp-ignored"
    enabled = f"overrides.{HYBRID_TP}.enabled=true"
    found = broken(PLUGIN, enabled)[name]
    assert found.refuses and not found.certain and found.fix == f"remove overrides.{HYBRID_TP}"
    assert name not in broken(PLUGIN) and name not in broken(PLUGIN, enabled.replace("true", "false"))
    assert name not in broken(R1_ZERO, enabled)
    assert all(name in broken(PLUGIN, enabled.replace("true", on)) for on in ("1", "yes"))


def test_an_engine_that_is_never_woken_gets_no_weights() -> None:
    """verl's AgentLoopManager wakes it, which syncs the weights, only where free_cache_engine is true."""
    name = "async-without-sleep"
    for recipe in (R1_ZERO, PLUGIN):
        found = broken(recipe, AWAKE, ASYNC)
        assert found[name].certain and found[name].fix == "set rollout.free_cache to true"
        assert "stale-prefix-cache" not in found
        assert name not in broken(recipe, ASYNC) and name not in broken(recipe, AWAKE)


def test_a_router_bias_without_the_adaptation() -> None:
    """A stack that lacks the patch, with a model that has a bias; its own Qwen has none."""
    name = "router-bias-rounded"
    found = broken(PLUGIN, "model.architecture=deepseek-v3")[name]
    assert found.refuses and "not in this tree" in found.figures
    assert name not in broken(PLUGIN) and name not in broken(R1_ZERO)
    assert name not in broken(CANN, "adaptations.router-bias=false")  # the known fault router-bias-bfloat16


@pytest.mark.parametrize("recipe", ["today-grpo-qwen3-30b", "newest-gspo-qwen3-30b"])
def test_weights_in_another_format_can_not_be_woken(recipe: str) -> None:
    name, mode = "sleep-mode-weight-format", "rollout.engine_arguments.additional_config.weight_nz_mode"
    assert name not in broken(recipe)
    found = broken(recipe, "env.VLLM_ASCEND_ENABLE_NZ=1")[name]
    assert found.certain and found.fix == 'set env.VLLM_ASCEND_ENABLE_NZ to "0"'
    assert name in broken(recipe, f"{mode}=1")
    assert name not in broken(recipe, "env.VLLM_ASCEND_ENABLE_NZ=1", f"{mode}=0")
    assert name not in broken(recipe, "env.VLLM_ASCEND_ENABLE_NZ=1", "rollout.free_cache=false")
