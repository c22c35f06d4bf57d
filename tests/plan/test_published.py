"""Recipes as others published them, against the trees they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.plan.plan import Plan, plan_of
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from tests.code_trees import R1_ZERO_PINS, lay, unpatched, unpatched_cann
from tests.plan.helpers import HERE, broken, rule, skipped

R1_ASCEND, CANN = (str(HERE / "published" / f"{name}.yaml") for name in ("r1-ascend", "cann-recipes-train"))
GEMM = "plan.except.moe-grouped-gemm=our image has megatron.training"
CONFIG = """
data: {truncation: error, filter_overlong_prompts: false}
actor_rollout_ref:
  model:
    enable_gradient_checkpointing: false
    gradient_checkpointing_kwargs: {activations_checkpoint_granularity: full}
  actor:
    megatron: {param_offload: true, grad_offload: true, swap_optimizer: false, pipeline_parallel_num_layer_list: null}
  ref: {megatron: {param_offload: true}}
  rollout: {free_cache_engine: true}
"""
INITIALIZES = "verl_patches/train_engine/initialize_training.py"
CANN_TREE = {
    "verl/trainer/main_ppo_npu.py": "from verl_patches.workers import spmd\n",
    "verl/trainer/config/ppo_mindspeed_trainer.yaml": CONFIG,
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py": """
        class vLLMRollout:
            def __init__(self, config):
                raise ValueError("Enable chunked prefill, max_num_batched_tokens is smaller than max_model_len")
                self.inference_engine.sleep(level=1)
        """,
    "verl_patches/workers/spmd.py": """
        from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout
        def __init__(self, config):
            LLM(enable_sleep_mode=False, additional_config={})
        vLLMRollout.__init__ = __init__
        """,
    INITIALIZES: """
        if config.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list:
            assert config.swap_optimizer, "no need to use optimizer_offload"
        """,
    "vllm_ascend/ascend_config.py": '"ACL Graph does not support deepseek"\n',
    "vllm_ascend/device_allocator/camem.py": '"Expandable segments are not compatible"\n',
}
# What upstream's own code computes wrongly, as it is without a patch.
FAULTS = {"known-fault"}


def cann(code: Path, *changes: str) -> Plan:
    tree = compose_config(
        code, ConfigLocation("verl.trainer.main_ppo_npu", "ppo_mindspeed_trainer", "verl/trainer/config")
    )
    return plan_of(load_recipe(CANN, changes), code, None, tree)


def test_its_layers_and_its_swapped_optimizer_are_read(tmp_path: Path) -> None:
    code = lay(tmp_path, CANN_TREE)
    made = cann(code)
    assert made.facts.sizes.model.stage_layers == (7, 7, 8, 8, 8, 8, 8, 7)
    assert not {"pipeline-layers", "swap-or-offload-optimizer"} & {*broken(made)}
    assert made.facts.transformer("swap_optimizer") is True
    both = rule(cann(code, "offload.optimizer=true"), "swap-or-offload-optimizer")
    assert both.refuses and both.figures.endswith(f"({INITIALIZES}:3)")
    key = "overrides.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"
    sixty = rule(cann(code, f"{key}=[7,7,8,8,8,8,8,6]"), "pipeline-layers")
    assert "60 layers on 8 stages, where there are 61 and 8" in sixty.figures
    assert sixty.fix.startswith(f"set {key}")


def test_its_tensor_ranks_divide_whole_experts(tmp_path: Path) -> None:
    without = cann(lay(tmp_path / "without", CANN_TREE)).facts.sizes
    extends = {INITIALIZES: f"{CANN_TREE[INITIALIZES]}\nconfig_dict['moe_tp_extend_ep'] = True\n"}
    extended = cann(lay(tmp_path / "with", CANN_TREE, extends)).facts.sizes
    assert (without.train.expert, without.expert_tensor) == (8, 4)
    assert (extended.train.expert, extended.expert_tensor) == (32, 1)


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
        # Nothing is recomputed as it is published, so it is tight.
        assert [found.rule for found in judgement.findings if found.rule.startswith("memory-")] == [
            "memory-update-tight"
        ]
        assert {"sleep-mode-expandable-segments", "mla-graph-needs-torchair"} <= skipped(
            judgement.plan
        ).keys()
