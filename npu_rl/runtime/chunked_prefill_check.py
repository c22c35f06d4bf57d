"""Adaptation chunked-prefill-check: prompts in pieces, or whole ones that fit a step of the engine.

verl refuses `max_num_batched_tokens` < `max_model_len` where chunked prefill is on
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:144@55e3c5b). It is the other way round: chunked prefill
is what makes it legal in vLLM (`SchedulerConfig._verify_args`, vllm/config.py@v0.9.1), and the V1 engine has it
always on (`EngineArgs._set_default_args_v1`, vllm/engine/arg_utils.py@v0.9.1). So it is allowed.

vllm-ascend's own scheduler, where it is enabled, turns chunking off again after that test
(vllm_ascend/core/schedule_config.py@v0.9.1rc2): a step then prefills whole prompts only. One that is longer than
a step is dropped without a response (`FINISHED_IGNORED`, vllm_ascend/core/scheduler.py@v0.9.1rc2), and
`LLM.generate` waits for it indefinitely. That is refused here instead. A sequence that is preempted for want of KV
cache comes back as such a prompt, with its response so far: `kv_cache_room` prevents that, or refuses the cache.

The rollout of cann-recipes-train always turns that scheduler on (verl_patches/workers/vllm_rollout/
vllm_rollout_spmd.py:126@bcd3be7), whatever the recipe says; there only what would be dropped is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import kv_cache_room
from .switches import enabled
from .used import count

SLUG = "chunked-prefill-check"


def refuses(config: Any, max_num_batched_tokens: int, max_model_len: int) -> bool:
    """Whether verl is to refuse these sizes (tokens); while the adaptation is off, as upstream does.

    config: verl's RolloutConfig (`enable_chunked_prefill`, `prompt_length`, `engine_kwargs`).
    Raises ValueError for prompts that the scheduler of vllm-ascend would drop.
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
    """Refuse a cache that lets no preempted sequence resume: see `kv_cache_room.demand`.

    config: as above. engine: vLLM's LLM, whose cache has been made. Nothing while the adaptation is off, where prompts
    are taken in pieces (also by an engine that is not vllm-ascend's, whatever the recipe sets for that one), or where a
    step holds a whole sequence. Raises ValueError.
    """
    if not enabled(SLUG) or _step_of_whole_prompts(config, 0) is None:
        return
    _demand_room(engine)


def demand_whole_prompts(config: Any, max_num_batched_tokens: int) -> None:
    """Refuse prompts that are longer than a step, for a rollout that always turns the Ascend scheduler on.

    config: verl's rollout section (`prompt_length`). Nothing while the adaptation is off. Raises ValueError.
    """
    if enabled(SLUG):
        count(SLUG)
        _demand_prompts_within(max_num_batched_tokens, config.prompt_length)


def demand_room_for_whole_prompts(engine: Any) -> None:
    """Do as `demand_room`, for a rollout that always turns the Ascend scheduler on and computes max_num_seqs itself."""
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
        f"{prompt}: a longer one than a step gets no response, and the rollout waits for it indefinitely. Set "
        f"rollout.max_batched_tokens to {prompt} or more{', ' if way else ' or '}shorten data.prompt_length"
        f"{', ' + way if way else ''}."
    )


def _step_of_whole_prompts(config: Any, max_num_batched_tokens: int) -> int | None:
    """The most tokens of a step that can't take a part of a prompt; None if it can.

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
