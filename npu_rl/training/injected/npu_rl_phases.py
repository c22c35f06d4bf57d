"""Recording of when phases of verl's trainer begin and end. The log shows a phase only after its end.

verl times each phase with a context manager: `marked_timer`, which it takes from verl.utils.debug, or `_timer` of
verl/trainer/ppo/ray_trainer.py (until 54c9b73). Both are wrapped right after their import; the times stay verl's own. A
line goes to the file NPU_RL_PHASES of the attempt, which every node can write. Workers of a group, which have
WG_PREFIX, note nothing; RANK may be the node's own. Nothing that fails here ends a run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_TIMERS = {
    "verl.utils.profiler": "marked_timer",
    "verl.utils.debug": "marked_timer",
    "verl.trainer.ppo.ray_trainer": "_timer",
}
_LONGEST_NAME = 100


def install() -> None:
    """Wrap verl's timers once they are imported."""
    try:
        from npu_rl_standins.hooks import after_import
    except ImportError:
        return  # only a rehearsal has the folder of stand-ins on its path

    for module, timer in _TIMERS.items():
        after_import(module, _wrapper(timer))


def _wrapper(timer: str) -> Callable[[ModuleType], None]:
    def wrap(module: ModuleType) -> None:
        own = getattr(module, timer, None)
        if callable(own) and not getattr(own, "notes_phases", False):
            setattr(module, timer, _noted(own))

    return wrap


def _noted(timer: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def noted(name: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        _note(name, begins=True)
        try:
            with timer(name, *arguments, **options) as value:
                yield value
        finally:
            _note(name, begins=False)

    noted.notes_phases = True  # type: ignore[attr-defined]
    return noted


def _note(name: object, *, begins: bool) -> None:
    path = os.environ.get("NPU_RL_PHASES")
    if not path or "WG_PREFIX" in os.environ:
        return
    import json  # not at every start of Python

    row = {"time": round(time.time(), 3), "phase": str(name)[:_LONGEST_NAME], "begins": begins}
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            os.write(handle, json.dumps(row).encode() + b"\n")  # one write: appended whole
        finally:
            os.close(handle)
