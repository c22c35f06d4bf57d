"""The grounds of the rules on vLLM servers and on the trainers that have only such."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.plan.rules.ground import Ground, at

_VERL_SERVERS = ("v0.8.0", "7aed6b2")  # the rollout is made of vLLM servers
_ANY_VERL_SERVERS = (*_VERL_SERVERS, "8851219")
_ENGINE_WORKERS = "verl/workers/engine_workers.py"
_AGENT_LOOP = "verl/experimental/agent_loop/agent_loop.py"

SERVER_GROUNDS: Mapping[str, Ground] = {
    "rollout-expert-size": Ground(
        (
            at(
                "verl/workers/config/rollout.py",
                "expert_parallel_size must be equal to tensor_model_parallel_size * data_parallel_size",
                _ANY_VERL_SERVERS,
            ),
        ),
        True,
    ),
    "batch-divisible-by-agent-workers": Ground(
        (
            at(_AGENT_LOOP, "prompts.chunk(len(self.agent_loop_workers))", _VERL_SERVERS),
            at("verl/protocol.py", "only support equal chunk.", _VERL_SERVERS),
        ),
        True,
    ),
    "megatron-needs-mbridge": Ground(
        (
            at(
                "verl/workers/engine/megatron/transformer_impl.py",
                "assert self.engine_config.use_mbridge",
                _ANY_VERL_SERVERS,
            ),
        ),
        True,
    ),
    "batch-divisible-by-mini-batch": Ground(
        (
            at(
                "verl/utils/tensordict_utils.py",
                "assert tensordict.batch_size[0] % mini_batch_size == 0",
                _ANY_VERL_SERVERS,
            ),
            at(
                _ENGINE_WORKERS,
                "mini_batch_size_per_gpu = mini_batch_size // self.engine.get_data_parallel_size()",
                _ANY_VERL_SERVERS,
            ),
        ),
        True,
    ),
    "dynamic-batches-agree": Ground(
        (
            at(
                _ENGINE_WORKERS,
                "assert self.config.actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz",
                _ANY_VERL_SERVERS,
            ),
        ),
        True,
    ),
    "fsdp-schedule": Ground(
        (
            at(
                "verl/workers/config/optimizer.py",
                'assert self.lr_scheduler_type in ["constant", "cosine"]\n        return super()',
                _ANY_VERL_SERVERS,
            ),
        ),
        True,
    ),
    "rollout-pipeline-parallel": Ground(
        (
            at(
                "verl/workers/config/rollout.py",
                "not implemented pipeline_model_parallel_size > 1 yet.",
                _ANY_VERL_SERVERS,
            ),
        ),
        True,
    ),
    "checkpoint-engine-backend": Ground(
        (at("verl/checkpoint_engine/base.py", "return cls._registry[backend]", _ANY_VERL_SERVERS),), True
    ),
}
