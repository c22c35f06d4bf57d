"""The grounds of the rules on vLLM servers and on the trainers that have only such."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.plan.rules.ground import Ground, at

_VERL_SERVERS = ("v0.8.0", "7aed6b2")  # the rollout is made of vLLM servers
_ANY_VERL_SERVERS = (*_VERL_SERVERS, "8851219")
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
    "checkpoint-engine-backend": Ground(
        (at("verl/checkpoint_engine/base.py", "return cls._registry[backend]", _ANY_VERL_SERVERS),), True
    ),
}
