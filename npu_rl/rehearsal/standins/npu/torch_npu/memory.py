"""Memory of the device that the CPU replaces: that of this process, in bytes."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any


def memory_allocated(device: Any = None) -> int:
    """Return the resident bytes of this process (the peak if there is no /proc)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return max_memory_allocated()
    return pages * os.sysconf("SC_PAGE_SIZE")


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak resident bytes of this process; a reset does not lower it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def total_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free and total bytes of this machine; all that this process does not hold counts as free."""
    total = total_memory()
    return total - memory_allocated(), total


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the entries that vllm_ascend/worker/worker_v1.py@v0.9.1rc2 reads, from the process's memory."""
    return {
        "allocated_bytes.all.current": memory_allocated(),
        "allocated_bytes.all.peak": max_memory_allocated(),
    }
