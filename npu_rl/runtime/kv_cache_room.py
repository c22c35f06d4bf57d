"""Adaptation kv-cache-room: the Ascend scheduler starts a sequence only if the KV cache holds its full length.

vllm-ascend's scheduler takes whole prompts (vllm_ascend/core/scheduler.py@v0.9.1rc2). When the cache is full it
preempts a running sequence, which is queued again as a prompt with its response so far; if that is longer than a step,
it is dropped (`FINISHED_IGNORED`) and `LLM.generate` waits for it indefinitely. The model runner's buffers have the
length of a step (`max_num_tokens`, vllm_ascend/worker/model_runner_v1.py:163@v0.9.1rc2), so the limit can't be raised.

With this adaptation no sequence is ever preempted: a sequence starts when it and all running ones fit into the cache
at their full length, and waits otherwise. A small cache costs time, not responses. Where a step holds the longest
sequence, a preempted sequence can resume, and upstream's scheduling is unchanged.
"""

from __future__ import annotations

import logging
from typing import Any

from .switches import enabled
from .used import count

SLUG = "kv-cache-room"

_log = logging.getLogger(__name__)


def keeps(config: Any) -> bool:
    """Return whether a scheduler with this SchedulerConfig must keep room because a preempted sequence can't resume."""
    return (
        enabled(SLUG)
        and not config.chunked_prefill_enabled
        and config.max_num_batched_tokens < config.max_model_len
    )


def has_room(scheduler: Any, request: Any) -> bool:
    """Return whether `request` can start: it and all running requests fit into the cache at their full length.

    scheduler: vllm-ascend's AscendScheduler. request: a waiting Request of vLLM's. If no request is running, it may
    always start: waiting would not free any room.
    """
    usable = usable_blocks(scheduler.kv_cache_manager.block_pool.num_gpu_blocks)
    if scheduler.max_num_running_reqs * _blocks(scheduler, scheduler.max_model_len) <= usable:
        return True
    if not scheduler.running:
        return True
    wanted = sum(_blocks(scheduler, _length(one)) for one in (*scheduler.running, request))
    if wanted <= usable:
        return True
    count(SLUG)
    return False


def demand(engine: Any, *, fixed_sequences: bool = False) -> None:
    """Raise ValueError for a KV cache that can lose responses; log a warning for one that makes sequences wait.

    engine: vLLM's LLM in this process, with an allocated cache and a scheduler whose step takes whole prompts and is
    shorter than the longest sequence. fixed_sequences: the trainer computes max_num_seqs itself, whatever the recipe
    sets. Responses can be lost if a single sequence doesn't fit, or if the scheduler keeps no room.
    """
    made = engine.llm_engine.vllm_config
    cache, sequences = made.cache_config, int(made.scheduler_config.max_num_seqs)
    longest = int(made.model_config.max_model_len)
    each, usable = -(-longest // cache.block_size), usable_blocks(cache.num_gpu_blocks)
    fitting = usable // each
    if fitting >= sequences:
        return
    found = (
        f"The KV cache has {usable} blocks of {cache.block_size} tokens for use, and {sequences} sequences of "
        f"{longest} tokens may need {sequences * each}"
    )
    if not fitting:
        raise ValueError(
            f"{found}: not even one fits. Raise rollout.memory_share, or shorten data.response_length."
        )
    fewer = "Raise" if fixed_sequences else f"Lower rollout.max_sequences to {fitting}, raise"
    ways = f"{fewer} rollout.memory_share, or set rollout.max_batched_tokens to {longest} or more."
    if _keeps_room(engine):
        _log.warning(
            "%s. So about %d run at a time and the others wait: slower, and no response is lost. %s",
            found,
            fitting,
            ways,
        )
        return
    raise ValueError(
        f"{found}. A sequence that is preempted gets no response, since the Ascend scheduler can't resume it in "
        f"chunks, and the rollout waits for it indefinitely. With the adaptation {SLUG} on (NPU_RL_KV_CACHE_ROOM=1), "
        f"sequences wait for room instead; it needs its patch in the tree, which `npu-rl status` lists. Or: {ways}"
    )


def usable_blocks(blocks: int) -> int:
    """Return the blocks left for sequences: one is vLLM's null block (vllm/v1/core/block_pool.py:66@v0.9.1)."""
    return blocks - 1


def _keeps_room(engine: Any) -> bool:
    """Return whether the scheduler of `engine` has the patch, and reports that it keeps room."""
    core: Any = engine.llm_engine
    for name in ("engine_core", "engine_core", "scheduler"):
        core = getattr(core, name, None)
    return bool(getattr(core, "keeps_room", False))


def _length(request: Any) -> int:
    """Return the most tokens that a request can have, including its prompt."""
    length: int = request.num_prompt_tokens + request.max_tokens
    return length


def _blocks(scheduler: Any, tokens: int) -> int:
    """Return the blocks of `tokens` of one sequence in all layer groups, including the drafter's lookahead."""
    tokens = min(tokens + scheduler.num_lookahead_tokens, scheduler.max_model_len)
    each: int = -(-tokens // scheduler.block_size)
    return each * len(scheduler.kv_cache_config.kv_cache_groups)
