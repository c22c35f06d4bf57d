"""Have this process write its Python stacks to a file in memory on a signal. Imported at every start.

faulthandler does it wherever the interpreter hangs, and lets the process go on. npu_rl_stack_dump.py sends the signal
and reads the file through /proc; a process that has no handler gets none, since it would end.
"""

import faulthandler
import os

NUMBER = 45  # a real-time signal: Python, Ray, torch and the shells use none of them
MEMORY_FILE = "npu-rl-stacks"


def register() -> None:
    """Register the handler. Failures here are ignored."""
    if not hasattr(os, "memfd_create") or not hasattr(faulthandler, "register"):
        return
    try:
        faulthandler.register(NUMBER, file=os.memfd_create(MEMORY_FILE), all_threads=True)
    except (OSError, ValueError, RuntimeError):
        return
