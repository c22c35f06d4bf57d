"""Grounds of the rules on vLLM servers, and on trainers whose rollout always uses servers."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.recipes.plan.rules.ground import Ground, certain, overrulable
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place

_VERL_SERVERS = ("v0.8.0", "7aed6b2")  # the rollout is made of vLLM servers
ANY_VERL_SERVERS = (*_VERL_SERVERS, "8851219")
SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
_ASCEND_0_18 = ("v0.18.0", "e18643f")
ASCEND_SERVERS = (*_ASCEND_0_18, "v0.23.0", "5cb98ca")
_ENGINE_WORKERS = "verl/workers/engine_workers.py"
_AGENT_LOOP = "verl/experimental/agent_loop/agent_loop.py"

_ROLLOUT_CONFIG = "verl/workers/config/rollout.py"


def _verl(file: str, text: str) -> Place:
    """Return a place in every pinned verl whose rollout uses servers."""
    return Place(file, text, ANY_VERL_SERVERS)


SERVER_GROUNDS: Mapping[str, Ground] = {
    "rollout-expert-size": certain(
        _verl(
            _ROLLOUT_CONFIG,
            "expert_parallel_size must be equal to tensor_model_parallel_size * data_parallel_size",
        )
    ),
    "batch-divisible-by-agent-workers": certain(
        Place(_AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))", _VERL_SERVERS),
        Place("verl/protocol.py", "only support equal chunk.", _VERL_SERVERS),
    ),
    "megatron-needs-mbridge": certain(ONLY_BRIDGES),
    "megatron-bridge-missing": overrulable(
        _verl("verl/models/mcore/bridge.py", "from megatron.bridge import AutoBridge")
    ),
    # verl 0.9 turns them back itself: c0de7379cf for vLLM 0.18, _patch_legacy_fused_moe_weight_loader at 8851219.
    "experts-stay-transposed": certain(
        Place(
            "vllm_ascend/ops/fused_moe/fused_moe.py",
            "_maybe_pad_weight(layer.w13_weight.data).transpose(1, 2)",
            _ASCEND_0_18,
        ),
        Place(
            _ENGINE_WORKERS,
            'if self.config.rollout.free_cache_engine:\n            await self.rollout.resume(tags=["weights"])',
            _VERL_SERVERS,
        ),
        Place(
            "verl/utils/vllm/npu_vllm_patch.py",
            'version.parse("0.13.0") and _VLLM_VERSION <= version.parse("0.14.0"):\n        # Disable flash_attn',
            _VERL_SERVERS,
        ),
    ),
    "quantized-model": certain(
        Place("vllm/platforms/interface.py", "quantization is currently not supported in", ("vllm==0.18.0",)),
        Place(
            "vllm_ascend/platform.py",
            "supported_quantization: list[str] = [ASCEND_QUANTIZATION_METHOD, COMPRESSED_TENSORS_METHOD]",
            _ASCEND_0_18,
        ),
    ),
    "batch-divisible-by-mini-batch": certain(
        _verl("verl/utils/tensordict_utils.py", "assert tensordict.batch_size[0] % mini_batch_size == 0"),
        _verl(
            _ENGINE_WORKERS,
            "mini_batch_size_per_gpu = mini_batch_size // self.engine.get_data_parallel_size()",
        ),
    ),
    "micro-batch-divides-share": certain(
        _verl(
            "verl/workers/engine/utils.py",
            "data size must be divisible by force_group_size * micro_batch_size_per_gpu",
        )
    ),
    "dynamic-batches-agree": certain(
        _verl(
            _ENGINE_WORKERS,
            "assert self.config.actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz",
        )
    ),
    "fsdp-schedule": certain(
        _verl(
            "verl/workers/config/optimizer.py",
            'assert self.lr_scheduler_type in ["constant", "cosine"]\n        return super()',
        )
    ),
    "rollout-pipeline-parallel": certain(
        _verl(_ROLLOUT_CONFIG, "not implemented pipeline_model_parallel_size > 1 yet.")
    ),
    "rollout-expert-tensor-parallel": certain(
        _verl(_ROLLOUT_CONFIG, "moe_tensor_parallel_size is only supported for trtllm")
    ),
    "virtual-pipeline-needs-stages": certain(
        Place(
            "megatron/core/parallel_state.py",
            "pipeline-model-parallel size should be greater than 1 with interleaved schedule",
            ("core_v0.16.1",),
        ),
        _verl(
            ONLY_BRIDGES.file,
            "virtual_pipeline_model_parallel_size=self.engine_config.virtual_pipeline_model_parallel_size",
        ),
    ),
    "rejection-needs-threshold": certain(
        _verl(
            "verl/trainer/ppo/rollout_corr_helper.py",
            "rollout_rs_threshold must be provided for rejection sampling",
        )
    ),
    "hybrid-engine": certain(
        _verl("verl/trainer/ppo/ray_trainer.py", "Currently, only support hybrid engine")
    ),
    "agent-loop-workers": certain(
        _verl(_AGENT_LOOP, "for i in range(num_workers):"),
        _verl(_AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))"),
    ),
    "agent-loop-registered": overrulable(_verl(_AGENT_LOOP, "assert agent_name in _agent_loop_registry")),
    "trainer-mode": certain(
        Place("verl/trainer/ppo/v1/trainer_base.py", "return TRAINER_REGISTRY[name]", ("8851219",))
    ),
    "checkpoint-engine-backend": certain(
        _verl("verl/checkpoint_engine/base.py", "return cls._registry[backend]")
    ),
}
