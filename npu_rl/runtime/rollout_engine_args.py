"""Adaptation rollout-engine-args: the recipe's arguments of vLLM's engine override those that verl fixes.

verl calls `LLM(model=..., enable_prefix_caching=True, ..., **engine_kwargs)`, where engine_kwargs has the recipe's
engine arguments: a key on both sides is a TypeError, "multiple values for keyword argument"
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:178@55e3c5b).

Prefix caching is off unless the recipe turns it on; verl always turns it on. A prefix that was computed with the
weights of one step must not be used in the next. `LLM.sleep` drops cached prefixes
(vllm/entrypoints/llm.py:1321@v0.9.1), but with `free_cache_engine=False` they are kept, as with an offload other than
vLLM's sleep, which frees even their blocks. A recipe that turns it on needs sleep, or `reset_prefix_cache` after every
change of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .switches import enabled
from .used import count

SLUG = "rollout-engine-args"

_FREE = frozenset({"enable_prefix_caching", "disable_custom_all_reduce", "seed"})
"""Arguments that verl fixes without a key for them; only the engine depends on their values."""

_BELONGS = {
    "model": "it is set by model.path, whose tokenizer and weights the trainer uses too",
    "tensor_parallel_size": "it is set by rollout.tensor_parallel, which also sizes the process groups",
    "distributed_executor_backend": "it is always external_launcher, since each training process has its own engine",
    "enable_sleep_mode": "it is set by rollout.free_cache and the adaptation rollout-offload",
    "skip_tokenizer_init": "without a tokenizer the engine can't detect the end of a response",
    "trust_remote_code": "it is set by model.trust_remote_code, which the trainer reads too",
    "enable_lora": "it is set by overrides.actor_rollout_ref.model.lora_rank",
    "max_loras": "it is set by overrides.actor_rollout_ref.model.lora_rank",
    "max_lora_rank": "it is set by overrides.actor_rollout_ref.model.lora_rank",
    "compilation_config": "it is set by overrides.actor_rollout_ref.rollout.cudagraph_capture_sizes",
    "data_parallel_size": "it is set by the variable VLLM_DP_SIZE, which also gives each engine its rank",
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
    """Return `llm` for upstream's call, with the recipe's keywords applied; `engine_kwargs` is empty afterwards.

    llm: vLLM's LLM. engine_kwargs: `rollout.engine_kwargs.vllm` without the keys that are None. OmegaConf containers in
    it become plain ones at any depth: vllm-ascend accepts only Python's own lists
    (vllm_ascend/ascend_config.py@v0.9.1rc2). While the adaptation is off, returns `llm` and changes nothing.

    Calling the result raises ValueError for a key whose value verl takes from another key: the error names both.
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
    """Return a copy as plain dicts and lists, with interpolations resolved. Other values are unchanged."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
        return [plain(inner) for inner in value]
    return value


def _refuse_what_belongs_elsewhere(given: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for key in given:
        if (key in fixed and key not in _FREE) or key == "data_parallel_size":
            own = _RECIPE_KEYS.get(key, f"overrides.actor_rollout_ref.rollout.{key}")
            place = _BELONGS.get(key, f"it is set by {own}, which the trainer reads too")
            raise ValueError(
                f"rollout.engine_arguments.{key}={given[key]!r}: this engine argument can't be set here; {place}. Take "
                "it out of the recipe. (NPU_RL_ROLLOUT_ENGINE_ARGS=0 gives verl's own call, which refuses every "
                "argument that it fixes.)"
            )
