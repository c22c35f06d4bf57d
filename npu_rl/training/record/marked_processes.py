"""This user's processes of all runs at once, by the mark that they inherited."""

from __future__ import annotations

import os

from npu_rl.common.process import RUN_VARIABLE


def marked_processes() -> dict[str, tuple[int, ...]]:
    """Return the other live processes of all runs on this host, by the run's mark. A zombie has no mark."""
    from psutil import Error, process_iter

    user = os.getuid()
    found: dict[str, list[int]] = {}
    for process in process_iter():
        if process.pid == os.getpid():
            continue
        try:
            mark = process.environ().get(RUN_VARIABLE, "")
            if mark and process.uids().effective == user:
                found.setdefault(mark, []).append(process.pid)
        except (Error, OSError):  # ended, or another user's
            continue
    return {mark: tuple(sorted(pids)) for mark, pids in found.items()}
