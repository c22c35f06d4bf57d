"""Sleep and wake-up of an engine, in the only order that gives correct responses."""

from __future__ import annotations

import functools
import gc
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..used import count
from . import derived, kv
from .parts import Parts
from .slug import SLUG
from .weights import Weights

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)

_log = logging.getLogger(__name__)


class ManualSleep:
    """Manual sleep of one engine. `sleep` and `wake_up` replace those of vllm.LLM (vllm/entrypoints/llm.py@v0.9.1).

    As in vLLM, a second sleep or wake-up only logs a warning. Where vLLM logs a warning and then generates wrong
    responses, this raises RuntimeError, and the engine's state is unchanged.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._weights = Weights(parts.model)
        self._asleep: set[str] = set()
        # The matrices are new: not checked yet for missing values, and nothing is derived from them.
        self._stale = False
        self._shapes = kv.shapes(parts)

    def sleep(self, level: int = 1) -> None:
        """Free the weights and the KV cache.

        level: 1 copies the weights' values to the host, so that wake_up restores them; 2 discards them (verl sends them
        again at each step).

        Raises RuntimeError while requests are unfinished, and for another level. While another exception propagates,
        such as through the sharding manager's `__exit__` after `generate` failed, the requests are aborted instead, and
        further errors are logged, so that the user sees the first exception.
        """
        if level not in (1, 2):
            raise RuntimeError(
                f"sleep(level={level}): the levels are 1 (keep the weights on the host) and 2 (discard them)."
            )
        failure = sys.exc_info()[1]
        if failure is None:
            self._sleep(level)
            return
        try:
            self._abort_requests()
            self._sleep(level)
        except Exception as error:  # noqa: BLE001 - a broken device may raise anything; the first failure tells more
            _log.warning(
                "The rollout failed (%s: %s), and could not sleep after that: %s: %s",
                type(failure).__name__, failure, type(error).__name__, error,
            )  # fmt: skip

    def _sleep(self, level: int) -> None:
        if self._asleep == set(TAGS):
            _log.warning("The rollout's engine is already asleep.")
            return
        self._forget_requests()
        derived.drop(self._parts.model)
        freed_kv = kv.free(self._parts)
        freed = self._weights.free(keep=level == 1)
        self._set_asleep(TAGS)
        self._stale = False
        self._empty_cache()
        count(SLUG)
        _log.info(
            "The rollout sleeps: freed %.2f GiB of weights, %.2f GiB of KV cache",
            freed / 2**30,
            freed_kv / 2**30,
        )

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Allocate the freed tensors again: `weights`, then `kv_cache`; both without tags.

        After sleep(level=2) the weights must be loaded before `kv_cache` wakes up; after a wake_up of both at once,
        before the engine is used. Raises RuntimeError for another order, an unknown tag, and weights that were not
        loaded.
        """
        wanted = set(tags or TAGS)
        if wanted - set(TAGS):
            raise RuntimeError(f"wake_up(tags={tags}): the tags are {TAGS}.")
        wanted &= self._asleep
        if not wanted:
            _log.warning("wake_up(tags=%s): already awake.", tags)
            return
        if WEIGHTS in self._asleep - wanted:
            raise RuntimeError(
                f"wake_up(tags={tags}): the weights are still asleep. In order: wake_up(tags=['weights']), "
                f"model.load_weights(...), wake_up(tags=['kv_cache'])."
            )
        together = WEIGHTS in wanted
        if together:
            self._stale = True
            complete = self._weights.bring_back()
            self._set_asleep(self._asleep - {WEIGHTS})
        if KV_CACHE in wanted:
            if not together or complete:  # else they can only be loaded later: `require_awake` looks then
                self._settle()
            self._create_kv_cache()
            self._set_asleep(())

    def require_awake(self) -> None:
        """Raise RuntimeError unless all is awake and loaded; rebuild the derived tensors of new weights."""
        if self._asleep:
            raise RuntimeError(
                f"The rollout's engine can't generate while parts of it are asleep: "
                f"{', '.join(sorted(self._asleep))}. "
                f"In order: wake_up(tags=['weights']), model.load_weights(...), wake_up(tags=['kv_cache'])."
            )
        if self._stale:
            self._settle()

    def guard(self, llm_engine: Any) -> None:
        """Make `llm_engine` (vLLM's LLMEngine) accept and run requests only while all of it is awake."""
        for name in ("add_request", "step"):
            setattr(llm_engine, name, _after(self.require_awake, getattr(llm_engine, name)))

    def _settle(self) -> None:
        missing = self._weights.unwritten()
        if missing:
            raise RuntimeError(
                f"{len(missing)} rollout weights were not loaded (still NaN): {', '.join(missing[:4])}"
                f"{' …' if len(missing) > 4 else ''}. Between wake_up(tags=['weights']) and "
                f"wake_up(tags=['kv_cache']), model.load_weights must receive every weight; if it did, the actor's own "
                f"weights are NaN."
            )
        derived.rebuild(self._parts.model, self._parts.runner.vllm_config.model_config.dtype)
        self._stale = False

    def _create_kv_cache(self) -> None:
        kv.create(self._parts)
        found = kv.shapes(self._parts)
        if found != self._shapes:
            raise RuntimeError(
                f"The KV cache was allocated again in other shapes: {found[:2]}…, before {self._shapes[:2]}…."
            )

    def _forget_requests(self) -> None:
        """Drop cached prefixes; raise RuntimeError while requests are unfinished, which would lose their KV cache."""
        scheduler = self._parts.core.scheduler
        unfinished = scheduler.get_num_unfinished_requests()
        if unfinished or not scheduler.reset_prefix_cache():
            raise RuntimeError(
                f"The rollout's engine can't sleep: {unfinished or 'some'} of its requests are unfinished and would "
                f"lose their KV cache. Let `generate` return, or abort them, first."
            )

    def _abort_requests(self) -> None:
        """Abort the requests left by a failed `generate`, in the scheduler and in the engine's own list."""
        scheduler = self._parts.core.scheduler
        states = self._parts.engine.output_processor
        left = [request.request_id for request in (*scheduler.waiting, *scheduler.running)]
        states.abort_requests(list(states.request_states))
        self._parts.core.abort_requests(left)
        if left:
            _log.warning("The rollout failed: its %d unfinished requests are aborted.", len(left))

    def _set_asleep(self, tags: Iterable[str]) -> None:
        """Record the sleeping tags, also in vLLM's executor, so that `LLMEngine.is_sleeping` is correct."""
        self._asleep = set(tags)
        self._parts.executor.sleeping_tags = set(self._asleep)
        self._parts.executor.is_sleeping = bool(self._asleep)

    def _empty_cache(self) -> None:
        import torch

        gc.collect()
        device = next(self._parts.model.parameters()).device
        empty_cache = getattr(getattr(torch, device.type), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()


def _after(check: Callable[[], None], method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check()
        return method(*args, **kwargs)

    return checked
