"""Have this process write its Python stacks to a file in memory on a signal. Imported at every start.

faulthandler does it wherever the interpreter hangs, and lets the process go on. npu_rl_stack_dump.py sends the signal
and reads the file through /proc; a process that has no handler gets none, since it would end.
"""

import faulthandler
import os

NUMBER = 45  # a real-time signal: Python, Ray, torch and the shells use none of them
MEMORY_FILE = "npu-rl-stacks"
_handle: "int | None" = None


def register() -> None:
    """Register the handler, now and in each child that is forked. Failures here are ignored."""
    if hasattr(os, "memfd_create") and hasattr(faulthandler, "register"):
        _register()
        os.register_at_fork(after_in_child=_register)


def _register() -> None:
    global _handle
    parents = _handle
    try:
        _handle = os.memfd_create(MEMORY_FILE)
        faulthandler.register(NUMBER, file=_handle, all_threads=True)
        if parents is not None:
            os.close(parents)
    except (OSError, ValueError, RuntimeError):
        return
