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
    if whole is not None and config.prompt_length > whole:
        raise ValueError(
            f"The Ascend scheduler prefills a prompt in one step of at most {whole} tokens, but a prompt may have "
            f"{config.prompt_length}: a longer one than a step gets no response, and the rollout waits for it "
            f"indefinitely. Set rollout.max_batched_tokens to {config.prompt_length} or more, shorten "
            "data.prompt_length, or turn "
            "rollout.engine_arguments.additional_config.ascend_scheduler_config.enabled off."
        )
    if upstream:
        count(SLUG)
    return False


def demand_room(config: Any, engine: Any) -> None:
    """Look whether a sequence might be preempted that could not come back: see `kv_cache_room.demand`.

    config: as above. engine: vLLM's LLM, whose cache has been made. Nothing while the adaptation is off, where prompts
    are taken in pieces (also by an engine that is not vllm-ascend's, whatever the recipe sets for that one), or where a
    step holds a whole sequence. Raises ValueError.
    """
    if not enabled(SLUG) or _step_of_whole_prompts(config, 0) is None:
        return
    made = engine.llm_engine.vllm_config
    scheduler, longest = made.scheduler_config, int(made.model_config.max_model_len)
    if not scheduler.enable_chunked_prefill and int(scheduler.max_num_batched_tokens) < longest:
        kv_cache_room.demand(engine)


def _step_of_whole_prompts(config: Any, max_num_batched_tokens: int) -> int | None:
    """The most tokens of a step that can't take a part of a prompt; None if it can.

    A field of the scheduler's configuration that stands in ascend_scheduler_config is the one that counts.
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
