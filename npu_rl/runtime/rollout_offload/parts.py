"""Access to the weights and the KV cache of a vLLM engine, and the check for unsupported engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import kv_cache_reuse
from .graph import refuse_fixed_addresses


@dataclass(frozen=True)
class Parts:
    """Parts of an engine that the offload uses.

    engine: vLLM's LLMEngine. core: its EngineCore, in this process. executor: the core's executor. runner: the only
    worker's model runner.
    """

    engine: Any
    core: Any
    executor: Any
    runner: Any

    @property
    def model(self) -> Any:
        return self.runner.model

    def attention_layers(self) -> Iterator[Any]:
        """Return the layers with a KV cache; the forward context has the MoE layers too."""
        for layer in self.runner.vllm_config.compilation_config.static_forward_context.values():
            if hasattr(layer, "kv_cache"):
                yield layer

    def kv_cache_configs(self) -> list[Any]:
        """Return a copy of the first start's configurations. Raises RuntimeError if they were not kept."""
        configs = kv_cache_reuse.kept(self.core)
        if configs is None:
            raise RuntimeError(
                "rollout-offload: the KV cache's first configuration was not kept, so it could not be made again. "
                "Leave kv-cache-reuse on (NPU_RL_KV_CACHE_REUSE), or check with `npu-rl verify` that its patch "
                "vllm/0.9.1/0001-kv-cache-reuse is in this tree."
            )
        return configs


def find_parts(engine: Any) -> Parts:
    """Return the parts of `engine` (a vllm.LLM of v0.9.1, V1, one worker in this process).

    Raises RuntimeError, with what to change, if the engine's core is in another process, if it uses vLLM's own memory
    pool, if its graphs have fixed addresses, or if something besides the model holds on to the weights.
    """
    client = getattr(engine.llm_engine, "engine_core", None)
    core = getattr(client, "engine_core", None)
    worker = getattr(getattr(getattr(core, "model_executor", None), "driver_worker", None), "worker", None)
    if core is None or worker is None:
        raise RuntimeError(
            "rollout-offload: the engine's one worker is not in this process, so its weights can't be reached. "
            "Set VLLM_USE_V1=1 and VLLM_ENABLE_V1_MULTIPROCESSING=0; set distributed_executor_backend="
            '"external_launcher", as verl does.'
        )
    parts = Parts(engine.llm_engine, core, core.model_executor, worker.model_runner)
    parts.kv_cache_configs()
    refuse_fixed_addresses(parts.runner)
    _refuse_holders(parts)
    return parts


def _refuse_holders(parts: Parts) -> None:
    if parts.runner.vllm_config.model_config.enable_sleep_mode:
        raise RuntimeError(
            "rollout-offload: the engine was made with enable_sleep_mode=True, so its weights are in vLLM's pool, "
            "which does not give memory back. The patch verl/55e3c5b/0003-rollout-offload leaves it off; take "
            "enable_sleep_mode out of rollout.engine_arguments."
        )
    if getattr(parts.runner, "dynamic_eplb", False):
        raise RuntimeError(
            "rollout-offload: dynamic expert load balancing keeps views of the experts' weights and would hold their "
            "memory. Set dynamic_eplb=False in rollout.engine_arguments.additional_config."
        )
    if getattr(getattr(parts.runner, "drafter", None), "model", None) is not None:
        raise RuntimeError(
            "rollout-offload: the engine has a draft model, which verl sends no weights to. Leave "
            "speculative_config out of rollout.engine_arguments."
        )
    for name, module in parts.model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is None or any(one.__name__.startswith("Unquantized") for one in type(method).__mro__):
            continue
        raise RuntimeError(
            f"rollout-offload: {name} is quantized ({type(method).__name__}): its weights are loaded in another layout "
            f"than they are used in. Use a checkpoint in bf16; leave quantization out of rollout.engine_arguments."
        )
