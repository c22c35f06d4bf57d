"""The grounds of the rules on vLLM servers and on the trainers that have only such."""

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

SERVER_GROUNDS: Mapping[str, Ground] = {
    "rollout-expert-size": certain(
        Place(
            "verl/workers/config/rollout.py",
            "expert_parallel_size must be equal to tensor_model_parallel_size * data_parallel_size",
            ANY_VERL_SERVERS,
        )
    ),
    "batch-divisible-by-agent-workers": certain(
        Place(_AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))", _VERL_SERVERS),
        Place("verl/protocol.py", "only support equal chunk.", _VERL_SERVERS),
    ),
    "megatron-needs-mbridge": certain(ONLY_BRIDGES),
    "megatron-bridge-missing": overrulable(
        Place("verl/models/mcore/bridge.py", "from megatron.bridge import AutoBridge", ANY_VERL_SERVERS)
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
        Place(
            "verl/utils/tensordict_utils.py",
            "assert tensordict.batch_size[0] % mini_batch_size == 0",
            ANY_VERL_SERVERS,
        ),
        Place(
            _ENGINE_WORKERS,
            "mini_batch_size_per_gpu = mini_batch_size // self.engine.get_data_parallel_size()",
            ANY_VERL_SERVERS,
        ),
    ),
    "micro-batch-divides-share": certain(
        Place(
            "verl/workers/engine/utils.py",
            "data size must be divisible by force_group_size * micro_batch_size_per_gpu",
            ANY_VERL_SERVERS,
        )
    ),
    "dynamic-batches-agree": certain(
        Place(
            _ENGINE_WORKERS,
            "assert self.config.actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz",
            ANY_VERL_SERVERS,
        )
    ),
    "fsdp-schedule": certain(
        Place(
            "verl/workers/config/optimizer.py",
            'assert self.lr_scheduler_type in ["constant", "cosine"]\n        return super()',
            ANY_VERL_SERVERS,
        )
    ),
    "rollout-pipeline-parallel": certain(
        Place(
            "verl/workers/config/rollout.py",
            "not implemented pipeline_model_parallel_size > 1 yet.",
            ANY_VERL_SERVERS,
        )
    ),
    "rollout-expert-tensor-parallel": certain(
        Place(
            "verl/workers/config/rollout.py",
            "moe_tensor_parallel_size is only supported for trtllm",
            ANY_VERL_SERVERS,
        )
    ),
    "virtual-pipeline-needs-stages": certain(
        Place(
            "megatron/core/parallel_state.py",
            "pipeline-model-parallel size should be greater than 1 with interleaved schedule",
            ("core_v0.16.1",),
        ),
        Place(
            "verl/workers/engine/megatron/transformer_impl.py",
            "virtual_pipeline_model_parallel_size=self.engine_config.virtual_pipeline_model_parallel_size",
            ANY_VERL_SERVERS,
        ),
    ),
    "rejection-needs-threshold": certain(
        Place(
            "verl/trainer/ppo/rollout_corr_helper.py",
            "rollout_rs_threshold must be provided for rejection sampling",
            ANY_VERL_SERVERS,
        )
    ),
    "hybrid-engine": certain(
        Place("verl/trainer/ppo/ray_trainer.py", "Currently, only support hybrid engine", ANY_VERL_SERVERS)
    ),
    "agent-loop-workers": certain(
        Place(_AGENT_LOOP, "for i in range(num_workers):", ANY_VERL_SERVERS),
        Place(_AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))", ANY_VERL_SERVERS),
    ),
    "agent-loop-registered": overrulable(
        Place(_AGENT_LOOP, "assert agent_name in _agent_loop_registry", ANY_VERL_SERVERS)
    ),
    "trainer-mode": certain(
        Place("verl/trainer/ppo/v1/trainer_base.py", "return TRAINER_REGISTRY[name]", ("8851219",))
    ),
    "checkpoint-engine-backend": certain(
        Place("verl/checkpoint_engine/base.py", "return cls._registry[backend]", ANY_VERL_SERVERS)
    ),
}
