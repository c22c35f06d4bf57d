"""Grounds of the rules on vLLM and vllm-ascend features: graphs, sleep mode, the sampler, prefix caching."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.recipes.plan.rules.ground import Ground, certain, overrulable
from npu_rl.recipes.plan.rules.server_rollout_grounds import ANY_VERL_SERVERS, ASCEND_SERVERS, SERVER
from npu_rl.recipes.trainer_code.citations import Place

R1_ZERO, CANN, QUICKSTART, PLUGIN = "55e3c5b", "54c9b73", "verl==0.5.0", "796871d"  # verl
VERL = (R1_ZERO, CANN, QUICKSTART, PLUGIN)
UNPATCHED = (R1_ZERO, QUICKSTART, PLUGIN)  # with CANN, verl_patches replace this code at run time
ASCEND = ("v0.9.1rc2", "vllm-ascend==0.9.1", "1de16ea")
ANY_ASCEND = (*ASCEND, "e1d282d")
_ASCEND_0_9_1 = ("v0.9.1rc2", "vllm-ascend==0.9.1", "e1d282d")

SPMD = "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py"
_FSDP_SYNC = "verl/workers/sharding_manager/fsdp_vllm.py"
_AGENT_LOOP = "verl/experimental/agent_loop/agent_loop.py"
_ASCEND_CONFIG = "vllm_ascend/ascend_config.py"
_WORKER, _RUNNER = "vllm_ascend/worker/worker_v1.py", "vllm_ascend/worker/model_runner_v1.py"
_ASKS_AS_OFTEN = "num_tokens_across_dp_native = self.get_dp_padding(num_tokens)"
_SAMPLER = "vllm_ascend/patch/worker/patch_common/patch_sampler.py"

# The recipe's additional_config reaches the engine only if the rollout doesn't pass its own.
ADDITIONAL = (Place(SPMD, "additional_config=", UNPATCHED, absent=True),)

ENGINE_GROUNDS: Mapping[str, Ground] = {
    "v1-engine": certain(),
    "sleep-mode-expandable-segments": overrulable(
        (
            Place(SPMD, "self.inference_engine.sleep(level=", UNPATCHED),
            Place(SERVER, '"enable_sleep_mode": self.config.enable_sleep_mode', ANY_VERL_SERVERS),
        ),
        Place(
            "vllm_ascend/device_allocator/camem.py",
            "Expandable segments are not compatible",
            (*ANY_ASCEND, *ASCEND_SERVERS),
        ),
    ),
    "graph-or-eager": certain(
        Place(_ASCEND_CONFIG, "Can't enable graph mode and eager mode", ANY_ASCEND), ADDITIONAL
    ),
    "mla-graph-needs-torchair": certain(
        Place(_ASCEND_CONFIG, "ACL Graph does not support deepseek", ANY_ASCEND), ADDITIONAL
    ),
    "torchair-switches": certain(
        Place(_ASCEND_CONFIG, "is valid only when Torchair graph mode", ASCEND), ADDITIONAL
    ),
    "graph-batch-sizes": overrulable(
        Place("vllm_ascend/worker/model_runner_v1.py", "graph_batch_sizes", ANY_ASCEND), ADDITIONAL
    ),
    "graph-batch-sizes-list": certain(
        Place(_ASCEND_CONFIG, "graph_batch_sizes must be list[int]", ANY_ASCEND), ADDITIONAL
    ),
    "topk-optimize-unused": overrulable(
        Place(_SAMPLER, "probs_sort, _ = probs.sort(dim=-1, descending=False)", _ASCEND_0_9_1)
    ),
    # 734eb68129 (#1920) renames the function, and calls an operator of torch_npu where both limits are set.
    "topk-optimize-swapped": certain(Place(_SAMPLER, "def _apply_top_k_top_p(", ("e1d282d",))),
    "topk-optimize-filters-otherwise": overrulable(Place(_SAMPLER, "def _apply_top_k_top_p(", ("e1d282d",))),
    "sleep-mode-loses-buffers": certain(
        Place(SPMD, "self.inference_engine.sleep(level=2)", (R1_ZERO,)),
        Place(_WORKER, "allocator.sleep(offload_tags=", ANY_ASCEND),
        Place(_WORKER, "_sleep_saved_buffers", ANY_ASCEND, absent=True),  # 01592515b8
    ),
    "data-parallel-graphs": certain(
        Place(_RUNNER, "def get_dp_padding(self,", ("1de16ea",)),
        Place(_RUNNER, _ASKS_AS_OFTEN, ("1de16ea",), absent=True),  # 99bf25af76
    ),
    "stale-prefix-cache": overrulable(
        (
            Place(SPMD, "enable_prefix_caching=True,", UNPATCHED),
            Place(SPMD, 'enable_prefix_caching=config.get("enable_prefix_caching", True)', (PLUGIN,)),
        ),
        Place(_FSDP_SYNC, "reset_prefix_cache", VERL, absent=True),
    ),
    "async-without-sleep": certain(
        Place(_AGENT_LOOP, "if self.config.actor_rollout_ref.rollout.free_cache_engine:", UNPATCHED)
    ),
    "hybrid-tp-ignored": overrulable(
        Place(SPMD, 'additional_config["oproj_tensor_parallel_size"]', (PLUGIN,)),  # MindSpeed-RL's verl_npu
        Place(_ASCEND_CONFIG, "oproj_tensor_parallel_size", ASCEND, absent=True),
    ),
}
