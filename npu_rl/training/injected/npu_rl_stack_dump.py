"""The Python stacks of a run's processes on one host. Standard library only; sent to the nodes by value.

Each process of a run writes them into a file in its memory when it gets a signal (npu_rl_stack_signal.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu_rl_stack_signal import MEMORY_FILE, NUMBER  # sent by value with these functions

_ANSWER = 2.0  # seconds for a process to write its stacks
_PAUSE = 0.02
_SETTLED = 3  # pauses without growth after which the stacks are whole


def dump_run(run: str) -> list[dict[str, Any]]:
    """Return the processes of a run on this host as JSON types, with stacks where available.

    Args:
        run: Its mark (NPU_RL_RUN).
    """
    rows = list(_processes(run))
    handles: dict[int, dict[str, Any]] = {}
    for row in rows:
        # A stopped process would write only once it goes on.
        file = (
            _memory_file(row["pid"]) if row["state"] not in "TtZ" and _catches(row["pid"], NUMBER) else None
        )
        with contextlib.suppress(OSError):  # it has ended
            if file is not None:
                handles[os.open(file, os.O_RDONLY | os.O_CLOEXEC)] = row
    before = {handle: os.fstat(handle).st_size for handle in handles}
    for row in handles.values():
        with contextlib.suppress(OSError):
            os.kill(row["pid"], NUMBER)
    _await_growth(before)
    for handle, row in handles.items():
        length = os.fstat(handle).st_size - before[handle]
        row["text"] = os.pread(handle, length, before[handle]).decode("utf-8", "replace")
        os.close(handle)
    return rows


def _await_growth(before: dict[int, int]) -> None:
    """Wait until the files have grown and grow no more."""
    size, unchanged = dict(before), dict.fromkeys(before, 0)
    deadline = time.monotonic() + _ANSWER
    while time.monotonic() < deadline and any(count < _SETTLED for count in unchanged.values()):
        time.sleep(_PAUSE)
        for handle in before:
            now = os.fstat(handle).st_size
            unchanged[handle] = unchanged[handle] + 1 if now == size[handle] > before[handle] else 0
            size[handle] = now


def _processes(run: str) -> Iterator[dict[str, Any]]:
    """Yield the run's processes from /proc, and their children that have ended but were not waited for."""
    known: set[int] = set()
    ended = []
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        stat = _read(pid, "stat")
        name, words = stat[stat.find("(") + 1 : stat.rfind(")")], stat[stat.rfind(")") + 1 :].split()
        if len(words) < 2 or pid == os.getpid():
            continue
        row = {"pid": pid, "parent": int(words[1]), "state": words[0], "name": name, "text": ""}
        if row["state"] == "Z":
            ended.append(row)
            continue
        environ = dict(entry.split("=", 1) for entry in _read(pid, "environ").split("\0") if "=" in entry)
        if environ.get("NPU_RL_RUN") == run:
            known.add(pid)
            title = _read(pid, "cmdline").replace("\0", " ").strip()[:300] or name
            rank, world, group = (environ.get(kept) for kept in ("RANK", "WORLD_SIZE", "WG_PREFIX"))
            yield {**row, "name": title, "rank": rank, "world": world, "group": group}
    yield from (row for row in ended if row["parent"] in known)


def _memory_file(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith(f"/memfd:{MEMORY_FILE}"):
                    return str(file)
    return None


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for the signal, which would end it otherwise."""
    masks = dict(line.split(":\t", 1) for line in _read(pid, "status").splitlines() if ":\t" in line)
    return bool(int(masks.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def _read(pid: int, file: str) -> str:
    """Return a file of /proc/PID; "" if the process has ended or is another user's."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_bytes().decode("utf-8", "replace")
    return ""


def main() -> None:
    """Print the processes of a run on this host as JSON: `python -m npu_rl_stack_dump RUN`."""
    print(json.dumps(dump_run(sys.argv[1])))


if __name__ == "__main__":
    main()
