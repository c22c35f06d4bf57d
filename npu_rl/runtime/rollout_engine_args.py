"""Adaptation rollout-engine-args: the recipe's arguments of vLLM's engine, laid over what verl fixes.

verl calls `LLM(model=..., enable_prefix_caching=True, ..., **engine_kwargs)`, where engine_kwargs is what the
recipe has for the engine: a key on both sides is a TypeError, "multiple values for keyword argument"
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:178@55e3c5b).

Prefix caching is off unless the recipe asks for it; verl fixes it as on. A prefix that was computed with the
weights of one step must not be used in the next. `LLM.sleep` forgets them (vllm/entrypoints/llm.py:1321@v0.9.1),
but with `free_cache_engine=False` nobody does, nor with an offload that is not vLLM's sleep, where the blocks are
not even there any more. Who turns it on needs sleep, or `reset_prefix_cache` after every change of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .switches import enabled
from .used import count

SLUG = "rollout-engine-args"

_FREE = frozenset({"enable_prefix_caching", "disable_custom_all_reduce", "seed"})
"""Fixed by verl without a key that could be set; nothing but the engine depends on their value."""

_BELONGS = {
    "model": "it is model.path, whose tokenizer and weights the trainer has",
    "tensor_parallel_size": "it is rollout.tensor_parallel, which the process groups are formed with",
    "distributed_executor_backend": "every training process has an engine of its own: external_launcher",
    "enable_sleep_mode": "rollout.free_cache turns it on, and the adaptation rollout-offload decides how",
    "skip_tokenizer_init": "without a tokenizer the engine can't tell the end of a response",
    "trust_remote_code": "it is model.trust_remote_code, for the trainer too",
    "enable_lora": "it comes from overrides.actor_rollout_ref.model.lora_rank",
    "max_loras": "it comes from overrides.actor_rollout_ref.model.lora_rank",
    "max_lora_rank": "it is overrides.actor_rollout_ref.model.lora_rank",
    "compilation_config": "it is made from overrides.actor_rollout_ref.rollout.cudagraph_capture_sizes",
    "data_parallel_size": "it is the variable VLLM_DP_SIZE, which gives every engine its rank too",
}

_RECIPE_KEYS = {
    "dtype": "rollout.dtype",
    "enable_chunked_prefill": "rollout.chunked_prefill",
    "enforce_eager": "rollout.eager",
    "gpu_memory_utilization": "rollout.memory_share",
    "load_format": "rollout.load_format",
    "max_model_len": "rollout.max_length",
    "max_num_batched_tokens": "rollout.max_batched_tokens",
    "max_num_seqs": "rollout.max_sequences",
}


def engine(llm: Callable[..., Any], engine_kwargs: dict[str, Any]) -> Callable[..., Any]:
    """`llm` for upstream's call, with the recipe's keywords in it; `engine_kwargs` is empty afterwards.

    llm: vLLM's LLM. engine_kwargs: `rollout.engine_kwargs.vllm` without the keys that are None. Containers of
    OmegaConf in it become plain ones, however deep: vllm-ascend takes a list for one only if it is Python's
    (vllm_ascend/ascend_config.py@v0.9.1rc2). While the adaptation is off: `llm`, and nothing is touched.

    Calling the result raises ValueError for a key that verl fixes from another place: it names key and place.
    """
    if not enabled(SLUG):
        return llm
    given = {str(key): plain(value) for key, value in engine_kwargs.items()}
    engine_kwargs.clear()  # upstream's `**engine_kwargs` in the same call adds nothing more

    def with_the_recipe(*arguments: Any, **fixed: Any) -> Any:
        _refuse_what_belongs_elsewhere(given, fixed)
        if "enable_prefix_caching" in fixed:
            fixed["enable_prefix_caching"] = False
        count(SLUG)
        return llm(*arguments, **{**fixed, **given})

    return with_the_recipe


def plain(value: Any) -> Any:
    """Return a copy as plain dicts and lists, with interpolations resolved. Other values stay as they are."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
        return [plain(inner) for inner in value]
    return value


def _refuse_what_belongs_elsewhere(given: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for key in given:
        if (key in fixed and key not in _FREE) or key == "data_parallel_size":
            own = _RECIPE_KEYS.get(key, f"overrides.actor_rollout_ref.rollout.{key}")
            place = _BELONGS.get(key, f"it is {own}, which the trainer reads too")
            raise ValueError(
                f"rollout.engine_arguments.{key}={given[key]!r}: this engine argument can't be set here; {place}. Take "
                "it out of the recipe. (NPU_RL_ROLLOUT_ENGINE_ARGS=0 gives verl's own call, which refuses every "
                "argument that it fixes.)"
            )
