"""Adaptation rollout-compile: torch.compile is the real one while the rollout is built and while it generates.

For training MindSpeed replaces torch.compile and torch.jit.script with a function that compiles nothing
(mindspeed/features_manager/megatron_basic/requirements_basic.py:32@7ff818c4). vllm-ascend captures its graphs with
torch.compile in the same process (vllm_ascend/worker/model_runner_v1.py:1892@v0.9.1rc2): when the engine is built,
and for the first batch of each size. With MindSpeed's function it runs without a graph, silently.

While a wrapped function runs:
- torch.compile, and each module's `compile` that was MindSpeed's, is the function that MindSpeed had replaced.
- MindSpeed may be imported or patch again: its patch of torch.compile, and only that one, is deferred.
- On return, on an exception and on an interrupt, MindSpeed's latest patches are restored, also in modules that were
  imported meanwhile. Calls may be nested; the outermost one restores.
- All threads of the process are affected, those that the rollout starts and all others.
A function compiled meanwhile doesn't refer to torch.compile: it also works, and compiles for new shapes, afterwards.
Not covered: `rollout.mode: async`, where a separate thread builds and calls the engine after these calls.

torch.jit.script is left alone: neither vLLM 0.9.1 nor vllm-ascend 0.9.1rc2 calls it, and torch_npu's own
transfer_to_npu, which MindSpeed imports first, disables it for NPUs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from .switches import enabled
from .used import count

SLUG = "rollout-compile"

_PATCHED = "torch.compile"  # as MindSpeed names it
_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_real_compile(function: _Function) -> _Function:
    """Wrap `function` so that torch.compile is the real one while it runs. Each call reads the switch.

    Raises TypeError for a generator or coroutine function: its body would run after the call has ended.
    """
    if (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TypeError(
            f"{function.__qualname__} of {function.__module__} can't be wrapped by with_real_compile: its body runs "
            f"after the call has ended. Wrap the plain function that builds or runs the rollout."
        )

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not enabled(SLUG):
            return function(*args, **kwargs)
        with _real_compile():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


_lock = threading.RLock()
_running = 0
_pause: _Pause | None = None


@contextmanager
def _real_compile() -> Iterator[None]:
    global _running, _pause
    with _lock:
        _running += 1
    try:
        with _lock:
            if _pause is None and (manager := _mindspeed()) is not None:
                _pause = _Pause(manager)
                _pause.begin()
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0 and _pause is not None:
                ended, _pause = _pause, None
                ended.end()


def _mindspeed() -> types.ModuleType | None:
    """Return MindSpeed's patch manager, which needs the standard library only; None without MindSpeed."""
    try:
        return importlib.import_module("mindspeed.patch_utils")
    except ImportError:
        return None


class _Pause:
    """Removal of MindSpeed's patch of torch.compile from `begin` to `end`; its other patches stay."""

    def __init__(self, module: types.ModuleType) -> None:
        self._patches: dict[str, Any] = module.MindSpeedPatchesManager.patches_info
        self._class: Any = module.Patch
        self._apply: Callable[[Any], None] = module.Patch.apply_patch
        self._taken_out = False
        self._asked_again = False

    def begin(self) -> None:
        self._class.apply_patch = self._guard()
        patch: Any = self._patches.get(_PATCHED)
        if patch is not None and patch.is_applied:
            self._taken_out = True
            _replace(patch.final_patch_func, patch.orig_func)
            count(SLUG)

    def _guard(self) -> Callable[[Any], None]:
        def apply_patch(patch: Any) -> None:
            if patch is not self._patches.get(_PATCHED):
                self._apply(patch)
            else:
                self._asked_again = True

        return apply_patch

    def end(self) -> None:
        self._class.apply_patch = self._apply
        patch: Any = self._patches.get(_PATCHED)
        if patch is None:
            return
        if self._asked_again and not patch.is_applied:
            patch.apply_patch()
            count(SLUG)
        elif self._taken_out and patch.final_patch_func is not None:  # None: removed meanwhile, for good
            _replace(patch.orig_func, patch.final_patch_func)


def _replace(old: Any, new: Any) -> None:
    """Replace `old` with `new` wherever it is a module's `compile`. vars, since hasattr would load lazy modules."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and vars(module).get("compile") is old:
            setattr(module, "compile", new)  # noqa: B010  an assignment would need a type for each module
