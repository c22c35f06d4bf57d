"""Run one command and say what it cost; hash what it left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_EVERY = 0.005  # seconds


@dataclass(frozen=True)
class Command:
    """What to run. `env` is the whole environment."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path | None = None


@dataclass(frozen=True)
class Cost:
    """wall and cpu in seconds (cpu: user and system of the whole tree of processes); `code` the exit status.

    rss: largest sum, over the processes alive at one moment, of resident memory, in bytes; pages that
    several processes share count once for each. pss: the same with shared pages split between their
    users. largest: the highest peak of any single process. Memory is None unless it was asked for.
    """

    wall: float
    cpu: float
    code: int
    error: str
    rss: int | None = None
    pss: int | None = None
    largest: int | None = None


def run(command: Command, log: Path, *, timeout: float, memory: bool = False) -> Cost:
    """Run to the end, or to `timeout` seconds. Whatever the command leaves running is killed."""
    with log.open("wb") as sink:
        began = time.monotonic()
        process = subprocess.Popen(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        sampler = MemorySampler(process.pid) if memory else None
        alarm = threading.Timer(timeout, _kill_session, [process.pid])
        alarm.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            alarm.cancel()
            _kill_session(process.pid)
            if sampler is not None:
                sampler.stop()
    error = "" if process.returncode == 0 else log.read_text(errors="replace")[-600:].strip()
    cpu = usage.ru_utime + usage.ru_stime
    if sampler is None:
        return Cost(wall, cpu, process.returncode, error)
    return Cost(wall, cpu, process.returncode, error, sampler.rss, sampler.pss, sampler.largest)


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


class MemorySampler:
    """Watches a process and its descendants in /proc (Linux; elsewhere the peaks stay None).

    ru_maxrss is no help: a child counts the memory of the interpreter it was forked from.
    """

    def __init__(self, pid: int) -> None:
        self.rss: int | None = None
        self.pss: int | None = None
        self.largest: int | None = None
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_EVERY):
            pids = descendants(self._pid)
            status = [_kilobytes(pid, "status", ("VmRSS", "VmHWM")) for pid in pids]
            shared = [_kilobytes(pid, "smaps_rollup", ("Pss",)) for pid in pids]
            self.rss = _higher(self.rss, sum(s.get("VmRSS", 0) for s in status))
            self.largest = _higher(self.largest, max((s.get("VmHWM", 0) for s in status), default=0))
            self.pss = _higher(self.pss, sum(s.get("Pss", 0) for s in shared))


def descendants(pid: int) -> list[int]:
    """The process and everything it started that is still its child or grandchild."""
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        try:
            for task in os.listdir(f"/proc/{current}/task"):
                waiting.extend(map(int, Path(f"/proc/{current}/task/{task}/children").read_text().split()))
        except OSError:  # it ended while we looked
            continue
    return found


def _kilobytes(pid: int, file: str, keys: tuple[str, ...]) -> dict[str, int]:
    """The named lines of a file in /proc/PID, in bytes. A process that just ended has none."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.partition(":") for line in lines)
    return {key: int(rest.split()[0]) * 1024 for key, _, rest in rows if key in keys}


def _higher(old: int | None, new: int) -> int | None:
    return old if not new else max(old or 0, new)


def disk_usage(*folders: Path) -> int:
    """Bytes of disk blocks, hard links counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        for parent, _, files in os.walk(folder):
            for name in (".", *files):
                info = os.lstat(os.path.join(parent, name))
                if (info.st_dev, info.st_ino) not in seen:
                    seen.add((info.st_dev, info.st_ino))
                    total += info.st_blocks * 512
    return total


def tree_id(folder: Path) -> str:
    """The git tree id of a folder, from its bytes and nothing else. A `.git` at its top is left out."""
    return _tree(os.fspath(folder), leave_out=".git").hex()


def _tree(folder: str, leave_out: str = "") -> bytes:
    entries: list[tuple[bytes, bytes]] = []
    with os.scandir(folder) as listing:
        for entry in listing:
            name = os.fsencode(entry.name)
            if entry.name == leave_out:
                continue
            if entry.is_symlink():
                entries.append((name, b"120000 %b\0" % name + _blob(os.fsencode(os.readlink(entry.path)))))
            elif entry.is_dir():
                entries.append((name + b"/", b"40000 %b\0" % name + _tree(entry.path)))
            else:
                mode = b"100755" if entry.stat().st_mode & 0o100 else b"100644"
                entries.append((name, b"%b %b\0" % (mode, name) + _blob(Path(entry.path).read_bytes())))
    body = b"".join(line for _, line in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).digest()


def _blob(data: bytes) -> bytes:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()
