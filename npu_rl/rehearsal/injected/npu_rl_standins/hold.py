"""Make the trainer wait after the step NPU_RL_HOLD_AFTER until it is stopped.

npu-rl stops a rehearsed training after a step that it reads in the log. A quick trainer would by then have gone on to
its next checkpoint, which the resume would take. Real: the metrics of the step, which are written before it waits.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType
from typing import Any

from .hooks import after_import
from .used import count

HOLD_AFTER = "NPU_RL_HOLD_AFTER"
_LONGEST = 600.0  # seconds; the stop takes one or two


def install() -> None:
    """Make verl wait when it logs the step's metrics."""
    if HOLD_AFTER in os.environ:
        after_import("verl.utils.tracking", _install_in)


def _install_in(module: ModuleType) -> None:
    upstream = module.Tracking.log
    last = int(os.environ[HOLD_AFTER])

    @functools.wraps(upstream)
    def log(tracking: Any, data: Any, step: int, *arguments: Any, **named: Any) -> Any:
        result = upstream(tracking, data, step, *arguments, **named)
        if step >= last:
            count("verl.Tracking.log: waits to be stopped")
            time.sleep(_LONGEST)
        return result

    module.Tracking.log = log
