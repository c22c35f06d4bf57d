"""Facts of this machine for the run record, read from files without running a vendor's tools."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from pathlib import Path
from typing import Any

_DEVICES = {"npu": re.compile(r"davinci[0-9]+"), "cuda": re.compile(r"nvidia[0-9]+")}  # files in /dev


def facts(root: Path = Path("/")) -> dict[str, Any]:
    """Return the facts of this machine, sizes in bytes; None for unknown facts.

    Args:
        root: Folder below which devices, limits and the distribution are read.
    """
    return {
        "hostname": socket.gethostname(),
        "platform": platform.machine(),
        "system": platform.system(),
        "kernel": platform.release(),
        "distribution": _distribution(root),
        "python": platform.python_version(),
        "cpus": cpus(),
        "memory": memory(),
        "memory_limit": memory_limit(root),
        "npus": devices("npu", root),
        "gpus": devices("cuda", root),
    }


def devices(kind: str, root: Path = Path("/")) -> int:
    """Return the number of this machine's devices of a recipe's kind: the files /dev/davinciN or /dev/nvidiaN."""
    name = _DEVICES.get(kind)
    try:
        return sum(1 for entry in (root / "dev").iterdir() if name and name.fullmatch(entry.name))
    except OSError:
        return 0


def cpus() -> int:
    """Return the number of CPUs that this process may use; in a container they can be fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the machine's memory in bytes, regardless of a container's limit."""
    from psutil import virtual_memory  # 30 ms, and most commands don't ask

    return int(virtual_memory().total)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return a container's memory limit in bytes, or None without one (cgroup v2, then v1)."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read_text(root / name).strip()
        if text.isascii() and text.isdigit() and int(text) < 1 << 60:  # v1 writes a huge number for "none"
            return int(text)
    return None


def usable_memory(root: Path = Path("/")) -> int:
    """Return the memory that a run may use, in bytes: the machine's, or a container's limit if it is lower."""
    limit = memory_limit(root)
    return memory() if limit is None else min(memory(), limit)


def free_disk(folder: Path) -> int | None:
    """Return the free bytes of the disk on which `folder` is or will be created; None if not known."""
    for place in (folder, *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _distribution(root: Path) -> str | None:
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read_text(root / "etc/os-release"), re.MULTILINE)
    return found[1] if found else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
