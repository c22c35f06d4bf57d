"""Counts of hook calls, in a file that is nearly correct even if the process is killed.

Each name has a line of fixed width that is rewritten in place: Ray ends its workers with SIGKILL, so a write at exit
would never happen. A name is written each of the first 100 times, and then at most once a second: a hook that runs
thousands of times in a step doesn't load a file system that all nodes share, and a kill loses at most its last second
of counts. Off unless NPU_RL_USAGE names a folder. Standard library only.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time

_EACH = 100  # counts of a name that are written one by one
_PAUSE = 1.0  # seconds between two writes after that

_lock = threading.Lock()
_counts: dict[str, int] = {}
_places: dict[str, int] = {}
_unwritten: set[str] = set()
_written = 0.0
_file: int | None = None
_owner = 0


def count(name: str) -> None:
    """Count one use of `name`. A folder that is not writable does not stop a training run."""
    folder = os.environ.get("NPU_RL_USAGE")
    if not folder:
        return
    with _lock:
        try:
            _note(folder, name)
        except OSError:
            pass


def _note(folder: str, name: str) -> None:
    if _owner != os.getpid():  # a fork goes on in a file of its own
        _begin(folder)
    _counts[name] = _counts.get(name, 0) + 1
    _unwritten.add(name)
    if _counts[name] <= _EACH or time.monotonic() - _written >= _PAUSE:
        _write()


def _begin(folder: str) -> None:
    """Create the file of this process, named by node and process id, with a number added if the file exists."""
    global _file, _owner
    for table in (_counts, _places, _unwritten):
        table.clear()
    _file, _owner = None, os.getpid()
    name = f"{folder}/{__name__.partition('.')[0]}-{os.uname().nodename}-{_owner}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    for number in itertools.count(1):
        try:
            _file = os.open(f"{name}.txt" if number == 1 else f"{name}.{number}.txt", flags, 0o644)
            break
        except FileExistsError:
            continue
    atexit.register(_end)


def _write() -> None:
    global _written
    if _file is None:
        return
    _written = time.monotonic()
    while _unwritten:
        name = _unwritten.pop()
        if name not in _places:
            _places[name] = os.lseek(_file, 0, os.SEEK_END)
        os.pwrite(_file, f"{_counts[name]:12d} {name}\n".encode(), _places[name])


def _end() -> None:
    with _lock:
        try:
            if _owner == os.getpid():
                _write()
        except OSError:
            pass
