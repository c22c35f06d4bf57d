"""Adaptation workers-expandable-segments: turn each worker's expandable segments off while it generates.

Expandable segments prevent training from running out of memory by fragmentation, but vLLM's sleep mode can't be used
with them (pytorch#147851; vllm_ascend/device_allocator/camem.py:148@1de16ea refuses a PYTORCH_NPU_ALLOC_CONF that sets
them). So they are switched at run time: off before a worker wakes its engine, on after the engine sleeps again.
verl_npu 2.3.0 does so for EXPANDABLE_SEGMENTS=True in recipe/dapo/dapo_ray_trainer.py, which runs in the trainer's
process, while the workers, which hold the memory, have allocators of their own.

Off by default, like EXPANDABLE_SEGMENTS. Without an NPU there is no such allocator, and nothing is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .switches import enabled
from .used import count

SLUG = "workers-expandable-segments"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def disable_before(enter: _Function) -> _Function:
    """Wrap a sharding manager's __enter__ to turn segments off before it, and on again if it fails."""

    @functools.wraps(enter)
    def run(*args: Any, **kwargs: Any) -> Any:
        _set(False)
        try:
            return enter(*args, **kwargs)
        except BaseException:  # `with` does not call __exit__ then
            _set(True)
            raise

    return run  # type: ignore[return-value]


def enable_after(leave: _Function) -> _Function:
    """Wrap a sharding manager's __exit__ to turn segments on after it, even if it fails."""

    @functools.wraps(leave)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return leave(*args, **kwargs)
        finally:
            _set(True)

    return run  # type: ignore[return-value]


def _set(expandable: bool) -> None:
    if not enabled(SLUG, default=False):
        return
    import torch

    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        return
    try:
        set_allocator = npu.memory._set_allocator_settings
    except AttributeError as error:
        raise RuntimeError(
            "This torch_npu has no torch.npu.memory._set_allocator_settings, so its expandable segments can't be "
            "switched at run time. Use torch_npu 2.7.1 or later, or NPU_RL_WORKERS_EXPANDABLE_SEGMENTS=0."
        ) from error
    set_allocator(f"expandable_segments:{expandable}")
    count(SLUG)
