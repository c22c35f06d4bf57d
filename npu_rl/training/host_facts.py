"""Facts of this machine for the run record. Reads files only: no tool of a vendor is run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from pathlib import Path
from typing import Any

_DEVICE = re.compile(r"davinci[0-9]+")


def facts(root: Path = Path("/")) -> dict[str, Any]:
    """What a reader of the record wants to know of the machine. Sizes in bytes; None: not known.

    root: where the machine's files lie; NPUs, limits and the distribution are read below it.
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
        "npus": npus(root),
    }


def npus(root: Path = Path("/")) -> int:
    """How many NPU dies this machine shows: the files /dev/davinciN."""
    try:
        return sum(1 for entry in (root / "dev").iterdir() if _DEVICE.fullmatch(entry.name))
    except OSError:
        return 0


def cpus() -> int:
    """The CPUs this process may use, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """The machine's memory in bytes, whatever a container may use of it."""
    from psutil import virtual_memory  # 30 ms, and most commands don't ask

    return int(virtual_memory().total)


def memory_limit(root: Path = Path("/")) -> int | None:
    """What a container may use of it, in bytes; None without a limit (cgroup v2, then v1)."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text(root / name).strip()
        if text.isascii() and text.isdigit() and int(text) < 1 << 60:  # v1 writes a huge number for "none"
            return int(text)
    return None


def usable_memory(root: Path = Path("/")) -> int:
    """What a run may use of this machine's memory, in bytes: a container's limit, if it is less."""
    limit = memory_limit(root)
    return memory() if limit is None else min(memory(), limit)


def free_disk(folder: Path) -> int | None:
    """Bytes that are free where `folder` is, or will be, written; None if nobody can say."""
    for place in (folder, *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _distribution(root: Path) -> str | None:
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    return found[1] if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
