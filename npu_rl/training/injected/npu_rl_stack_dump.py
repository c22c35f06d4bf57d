"""The Python stacks of a run's processes on one host. Standard library only; sent to the nodes by value.

Each process of a run writes them into a file in its memory when it gets a signal (npu_rl_stack_signal.py). A process
that does not answer, such as a stopped one, is read by py-spy where that is installed and permitted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu_rl_stack_signal import MEMORY_FILE, NUMBER  # sent by value with these functions

_ANSWER = 2.0  # seconds for a process to write its stacks
_PAUSE = 0.02
_SETTLED = 3  # pauses without growth after which the stacks are whole
_LARGEST = 1 << 18  # bytes of one process
_MOST = 512  # processes of one host
_SPY_SECONDS = 12.0  # for all processes of one host
_STOPPED = ("T", "t")
_KEPT = ("RANK", "WORLD_SIZE", "WG_PREFIX")


def dump_run(run: str) -> list[dict[str, Any]]:
    """Return the processes of a run on this host as JSON types, with stacks where available.

    Args:
        run: Its mark (NPU_RL_RUN).
    """
    rows = list(_processes(run))[:_MOST]
    asked = [row for row in rows if row["state"] not in (*_STOPPED, "Z")]
    for several in _rounds(asked):
        _ask(several)
    until = time.monotonic() + _SPY_SECONDS
    for row in rows:
        if not row["text"] and row["python"] and row["state"] != "Z":
            row["text"], row["how"] = _by_py_spy(row["pid"], until - time.monotonic())
        if not row["text"] and row["state"] == "D":
            row["how"] = f"it waits inside the kernel; {row['how']}"
    return rows


def _processes(run: str) -> Iterator[dict[str, Any]]:
    """Yield the run's processes from /proc, including zombie children."""
    known: set[int] = set()
    ended = []
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        stat = _stat(pid)
        if stat is None or pid == os.getpid():
            continue
        name, state, parent = stat
        row = {
            "pid": pid,
            "parent": parent,
            "state": state,
            "name": name,
            "text": "",
            "how": "",
            "python": False,
        }
        if state == "Z":
            ended.append({**row, "rank": None, "world": None, "group": None})
            continue
        environ = _environ(pid)
        if environ.get("NPU_RL_RUN") != run:
            continue
        known.add(pid)
        rank, world, group = (environ.get(kept) for kept in _KEPT)
        title = _command(pid) or name
        yield {**row, "name": title, "rank": rank, "world": world, "group": group, "python": _is_python(pid)}
    yield from (row for row in ended if row["parent"] in known)


def _rounds(rows: list[dict[str, Any]]) -> list[list[tuple[dict[str, Any], int]]]:
    """Return rounds of processes with a handler and their files. A fork shares its parent's file, so it comes later."""
    found: dict[tuple[int, int], int] = {}
    rounds: list[list[tuple[dict[str, Any], int]]] = []
    for row in rows:
        file = _memory_file(row["pid"]) if _catches(row["pid"], NUMBER) else None
        try:
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC) if file else None
        except OSError:  # it has ended
            handle = None
        if handle is None:
            continue
        status = os.fstat(handle)
        number = found.get((status.st_dev, status.st_ino), 0)
        found[status.st_dev, status.st_ino] = number + 1
        rounds += [[]] if number == len(rounds) else []
        rounds[number].append((row, handle))
    return rounds


def _ask(several: list[tuple[dict[str, Any], int]]) -> None:
    """Have processes write their stacks at the same time, and read the stacks."""
    before = {handle: os.fstat(handle).st_size for _, handle in several}
    size, unchanged = dict(before), dict.fromkeys(before, 0)
    for row, _ in several:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(row["pid"], NUMBER)
    deadline = time.monotonic() + _ANSWER
    while time.monotonic() < deadline and any(count < _SETTLED for count in unchanged.values()):
        time.sleep(_PAUSE)
        for handle in before:
            now = os.fstat(handle).st_size
            unchanged[handle] = unchanged[handle] + 1 if now == size[handle] and now > before[handle] else 0
            size[handle] = now
    for row, handle in several:
        length = min(size[handle] - before[handle], _LARGEST)
        row["text"] = os.pread(handle, length, before[handle]).decode("utf-8", "replace")
        row["how"] = "faulthandler" if row["text"] else ""
        os.close(handle)


def _memory_file(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith(f"/memfd:{MEMORY_FILE}"):
                    return str(file)
    return None


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for the signal, which would end it otherwise."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, mask = line.partition(b":")
        if name == b"SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def _by_py_spy(pid: int, seconds: float) -> tuple[str, str]:
    """Return the stacks from py-spy, and "py-spy"; or "" and the reason for its failure."""
    if seconds <= 0:
        return "", "no time was left for py-spy"
    beside = Path(sys.executable).with_name("py-spy")
    spy = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if spy is None:
        return "", "py-spy is not installed"
    words = [spy, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"py-spy: {type(error).__name__}"
    text = done.stdout[:_LARGEST].decode("utf-8", "replace")
    if done.returncode == 0 and text.strip():
        return text, "py-spy"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "", f"py-spy: {said[-1][:200] if said else 'no stacks'}"


def _stat(pid: int) -> tuple[str, str, int] | None:
    """Return name, state and parent of a process; None if it has ended."""
    text = _read(f"/proc/{pid}/stat").decode("utf-8", "replace")
    begin, end = text.find("("), text.rfind(")")
    words = text[end + 1 :].split()
    return (text[begin + 1 : end], words[0], int(words[1])) if len(words) > 1 else None


def _environ(pid: int) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in _read(f"/proc/{pid}/environ").split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _command(pid: int) -> str:
    return " ".join(os.fsdecode(_read(f"/proc/{pid}/cmdline")).split("\0")).strip()[:300]


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    return False


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while len(data) < 1 << 20 and (piece := os.read(handle, 1 << 16)):
            data += piece
        return data
    except OSError:
        return b""
    finally:
        os.close(handle)


def main() -> None:
    """Print the processes of a run on this host as JSON: `python -m npu_rl_stack_dump RUN`."""
    print(json.dumps(dump_run(sys.argv[1])))


if __name__ == "__main__":
    main()
