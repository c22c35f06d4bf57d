"""This user's processes of all runs, identified by the mark that they inherit."""

from __future__ import annotations

import os

from npu_rl.common.process import RUN_VARIABLE


def marked_processes() -> dict[str, tuple[int, ...]]:
    """Return the other live processes of all runs on this host, grouped by the run's mark. Zombies have no mark."""
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
