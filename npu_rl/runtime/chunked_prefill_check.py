"""Adaptation chunked-prefill-check: allow chunked prompts, and refuse whole ones that don't fit an engine step.

verl refuses `max_num_batched_tokens` < `max_model_len` where chunked prefill is on
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:144@55e3c5b). vLLM has the opposite rule: these sizes are valid
exactly because of chunked prefill (`SchedulerConfig._verify_args`, vllm/config.py@v0.9.1), which the V1 engine always
turns on (`EngineArgs._set_default_args_v1`, vllm/engine/arg_utils.py@v0.9.1). So they are allowed here.

vllm-ascend's own scheduler, where it is enabled, turns chunking off again after that test
(vllm_ascend/core/schedule_config.py@v0.9.1rc2): a step then prefills whole prompts only. A prompt longer than a step
is dropped without a response (`FINISHED_IGNORED`, vllm_ascend/core/scheduler.py@v0.9.1rc2), and `LLM.generate` waits
for it indefinitely. That is refused here instead. A sequence that is preempted because the KV cache is full returns to
the queue as such a prompt, with its response so far: `kv_cache_room` prevents that, or refuses the cache.

The rollout of cann-recipes-train always turns that scheduler on (verl_patches/workers/vllm_rollout/
vllm_rollout_spmd.py:126@bcd3be7), whatever the recipe sets; only prompts that would be dropped are refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import kv_cache_room
from .switches import enabled
from .used import count

SLUG = "chunked-prefill-check"


def refuses(config: Any, max_num_batched_tokens: int, max_model_len: int) -> bool:
    """Return whether verl must refuse these sizes in tokens: never, or as upstream while the adaptation is off.

    config: verl's RolloutConfig (`enable_chunked_prefill`, `prompt_length`, `engine_kwargs`).
    Raises ValueError for prompts that vllm-ascend's scheduler would drop.
    """
    upstream = bool(max_num_batched_tokens < max_model_len and config.enable_chunked_prefill)
    if not enabled(SLUG):
        return upstream
    whole = _step_of_whole_prompts(config, max_num_batched_tokens)
    if whole is not None:
        _demand_prompts_within(
            whole,
            config.prompt_length,
            "or turn rollout.engine_arguments.additional_config.ascend_scheduler_config.enabled off",
        )
    if upstream:
        count(SLUG)
    return False


def demand_room(config: Any, engine: Any) -> None:
    """Raise ValueError for a KV cache that prevents preempted sequences from resuming (`kv_cache_room.demand`).

    config: verl's RolloutConfig. engine: vLLM's LLM, after it allocated its cache. Does nothing while the adaptation is
    off, where prompts are chunked (an engine other than vllm-ascend's always does so, whatever the recipe sets for the
    Ascend scheduler), or where a step holds a whole sequence.
    """
    if not enabled(SLUG) or _step_of_whole_prompts(config, 0) is None:
        return
    _demand_room(engine)


def demand_whole_prompts(config: Any, max_num_batched_tokens: int) -> None:
    """Raise ValueError for prompts longer than a step, in a rollout that always turns the Ascend scheduler on.

    config: verl's rollout section (`prompt_length`). Does nothing while the adaptation is off.
    """
    if enabled(SLUG):
        count(SLUG)
        _demand_prompts_within(max_num_batched_tokens, config.prompt_length)


def demand_room_for_whole_prompts(engine: Any) -> None:
    """Do the check of `demand_room` in a rollout that always turns the scheduler on and computes max_num_seqs."""
    if enabled(SLUG):
        _demand_room(engine, fixed_sequences=True)


def _demand_room(engine: Any, *, fixed_sequences: bool = False) -> None:
    made = engine.llm_engine.vllm_config
    scheduler, longest = made.scheduler_config, int(made.model_config.max_model_len)
    if not scheduler.enable_chunked_prefill and int(scheduler.max_num_batched_tokens) < longest:
        kv_cache_room.demand(engine, fixed_sequences=fixed_sequences)


def _demand_prompts_within(step: int, prompt: int, way: str = "") -> None:
    if prompt <= step:
        return
    raise ValueError(
        f"The Ascend scheduler prefills a prompt in one step of at most {step} tokens, but a prompt may have "
        f"{prompt}: a prompt longer than a step gets no response, and the rollout waits for it indefinitely. Set "
        f"rollout.max_batched_tokens to {prompt} or more{', ' if way else ' or '}shorten data.prompt_length"
        f"{', ' + way if way else ''}."
    )


def _step_of_whole_prompts(config: Any, max_num_batched_tokens: int) -> int | None:
    """Return the most tokens of a step that takes whole prompts only; None if prompts can be chunked.

    A field of the scheduler's configuration in ascend_scheduler_config overrides the engine's own.
    """
    scheduler: Any = config.get("engine_kwargs")
    for name in ("vllm", "additional_config", "ascend_scheduler_config"):
        scheduler = _part(scheduler, name)
    if not scheduler.get("enabled", False) or scheduler.get("enable_chunked_prefill", False):
        return None
    return int(scheduler.get("max_num_batched_tokens", max_num_batched_tokens))


def _part(section: Any, name: str) -> Mapping[str, Any]:
    part = section.get(name) if isinstance(section, Mapping) else None
    return part if isinstance(part, Mapping) else {}
