"""How often each hook ran, kept in a file that is right even if the process is killed.

One line per name, of fixed width, rewritten in place: Ray ends its workers with SIGKILL, so nothing that is
written at exit would arrive. Off unless NPU_RL_USAGE names a folder. Standard library only.
"""

from __future__ import annotations

import os
import threading

_lock = threading.Lock()
_counts: dict[str, int] = {}
_places: dict[str, int] = {}
_file: int | None = None
_owner = 0


def count(name: str) -> None:
    """Note one use of `name`. A folder that can't be written to is no reason to stop a training."""
    folder = os.environ.get("NPU_RL_USAGE")
    if not folder:
        return
    with _lock:
        try:
            _write(folder, name)
        except OSError:
            pass


def _write(folder: str, name: str) -> None:
    global _file, _owner
    if _file is None or _owner != os.getpid():  # a fork goes on in a file of its own
        _counts.clear()
        _places.clear()
        _owner = os.getpid()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        _file = os.open(f"{folder}/{__name__.partition('.')[0]}-{_owner}.txt", flags, 0o644)
    _counts[name] = _counts.get(name, 0) + 1
    line = f"{_counts[name]:12d} {name}\n".encode()
    if name not in _places:
        _places[name] = os.lseek(_file, 0, os.SEEK_END)
    os.pwrite(_file, line, _places[name])
