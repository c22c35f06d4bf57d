"""Kill a process before a system call by which it, or a child of its, changes a folder of checkpoints.

    python tracer.py PID FOLDER SHARE     # of the changes of a save; prints JSON

By ptrace, so that neither torch's C++ nor Megatron-core's writers, which are forks, have to know of it. The content of
a folder changes only in these calls, and the number of those that write is the same in each save; that of all system
calls (polls, locks) is not. Ranks of one folder that delete an old checkpoint at once share its files among them as it
comes, so deletions are counted by themselves. New folders are not counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import signal
import sys
import time
from pathlib import Path

_SEIZE, _INTERRUPT, _SYSCALL, _LISTEN, _CONT, _INFO = 0x4206, 0x4207, 24, 0x4208, 7, 0x420E
_FOLLOW = 0x1 | 0x2 | 0x4 | 0x8 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, EXITKILL
_WALL = 0x40000000 | 0x20000000  # __WALL and __WNOTHREAD: what this thread traces
_AT_CALL = signal.SIGTRAP | 0x80
_GROUP_STOP = 128  # PTRACE_EVENT_STOP
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_HERE = 0xFFFFFF9C  # AT_FDCWD, as 32 bits
_LIBC = ctypes.CDLL(None, use_errno=True)

# By the number on x86-64: the name, and which arguments are the descriptor and the path of what it changes.
CALLS: dict[int, tuple[str, int | None, int | None]] = {
    1: ("write", 0, None), 18: ("pwrite64", 0, None), 20: ("writev", 0, None), 296: ("pwritev", 0, None),
    40: ("sendfile", 0, None), 326: ("copy_file_range", 2, None), 285: ("fallocate", 0, None),
    74: ("fsync", 0, None), 75: ("fdatasync", 0, None), 77: ("ftruncate", 0, None), 91: ("fchmod", 0, None),
    76: ("truncate", None, 0), 90: ("chmod", None, 0), 268: ("fchmodat", 0, 1), 280: ("utimensat", 0, 1),
    2: ("open", None, 0), 85: ("creat", None, 0), 257: ("openat", 0, 1),
    82: ("rename", None, 0), 264: ("renameat", 0, 1), 316: ("renameat2", 0, 1),
    86: ("link", None, 1), 265: ("linkat", 2, 3), 88: ("symlink", None, 1), 266: ("symlinkat", 1, 2),
    84: ("rmdir", None, 0), 87: ("unlink", None, 0), 263: ("unlinkat", 0, 1),
}  # fmt: skip
_STEP = re.compile(r"global_step_(\d+)/")
_DELETING = ("rmdir", "unlink", "unlinkat")


class _SyscallInfo(ctypes.Structure):
    """The kernel's struct ptrace_syscall_info, at a call's entry."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


class Tracer:
    """A process with its threads and children, and where its saves begin and end.

    It writes b and e to a pipe. Without one a save begins with the first write into a new step's folder.

    Attributes:
        counted: Deletions and writes of the save that was counted.
        count: Those of the save after it, with the call before which the process was killed.
        last: That call, and its path in the folder.
        signal: The signal it died of; None if it ended by itself.
        within: Whether it died after b and before e.
    """

    def __init__(self, pid: int, said: int | None, folder: Path) -> None:
        self.pid, self._said, self._folder = pid, said, f"{folder}/"
        self.counted, self.count = [0, 0], [0, 0]
        self.last, self.within = "", False
        self.signal: int | None = None
        self._saves, self._step = 0, 0
        self._inside = said is None

    @staticmethod
    def possible() -> bool:
        """Whether the numbers of this kernel's system calls are known here."""
        return platform.machine() == "x86_64"

    def seize(self) -> None:
        """Begin to trace each thread. Raises OSError where that is not allowed."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if _LIBC.ptrace(_SEIZE, int(task.name), 0, _FOLLOW) != 0:
                raise OSError(ctypes.get_errno(), "ptrace")
            _LIBC.ptrace(_INTERRUPT, int(task.name), 0, 0)
        if self._said is not None:
            os.set_blocking(self._said, False)

    def follow(self, share: float, alone: bool) -> None:
        """Let it run, count the changes of its next save, and kill it in the one after at this share of them.

        A deletion that another rank was faster with: then before the first write.

        alone: its children live on, until they end or for 2 s.
        """
        while True:
            try:
                tid, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if tid == self.pid:
                    self._ended(status)
                    return
                continue
            self._listen()
            if os.WSTOPSIG(status) == _AT_CALL and self._inside and (call := self._change(tid)):
                deletion = call.split()[0] in _DELETING
                step = _STEP.search(call)
                if self._said is None and step and not deletion and int(step[1]) > self._step:
                    self._step = int(step[1])
                    self._begin()
                self.count[0 if deletion else 1] += 1
                if self._saves == 2 and self._reached(share):
                    self.last = call
                    self._kill(tid, alone)
                    return
            self._go(tid, status, _SYSCALL)

    def _begin(self) -> None:
        self._saves += 1
        self.counted, self.count = self.count, [0, 0]

    def _listen(self) -> None:
        for word in self._words():
            self._inside = word == "b"
            if self._inside:
                self._begin()

    def _reached(self, share: float) -> bool:
        (deletions, writes), (deleted, written) = self.counted, self.count
        at = 1 + int(share * (deletions + writes))
        return written == at - deletions if at > deletions else deleted == at or written == 1

    def reap(self) -> None:
        """Wait for the end of all that it traced, which is killed."""
        with contextlib.suppress(ChildProcessError):
            while True:
                tid, status = os.waitpid(-1, _WALL)
                if os.WIFSTOPPED(status):
                    self._go(tid, status, _CONT)

    def _kill(self, tid: int, alone: bool) -> None:
        os.kill(self.pid, signal.SIGKILL) if alone else os.killpg(self.pid, signal.SIGKILL)
        ending = time.monotonic() + (2 if alone else 0)
        _LIBC.ptrace(_CONT, tid, 0, 0)  # a child that lives on makes its call
        while self.signal is None or time.monotonic() < ending:
            try:
                tid, status = os.waitpid(-1, _WALL | os.WNOHANG)
            except ChildProcessError:
                return
            if tid == 0:
                time.sleep(0.001)
            elif os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if tid == self.pid:
                    self._ended(status)
            else:
                self._go(tid, status, _CONT)

    def _ended(self, status: int) -> None:
        self._listen()
        self.within = self._inside
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def _go(self, tid: int, status: int, how: int) -> None:
        number, event = os.WSTOPSIG(status), status >> 16
        if event == _GROUP_STOP and number in (signal.SIGSTOP, signal.SIGTSTP):
            _LIBC.ptrace(_LISTEN, tid, 0, 0)
        else:
            _LIBC.ptrace(how, tid, 0, 0 if event or number == _AT_CALL else number)

    def _change(self, tid: int) -> str:
        """Return the call that a thread is about to make if it changes the folder, else an empty text."""
        info = _SyscallInfo()
        _LIBC.ptrace(_INFO, tid, ctypes.sizeof(info), ctypes.byref(info))
        if info.op != 1 or info.number not in CALLS:
            return ""
        name, descriptor, path = CALLS[info.number]
        flags = {"open": 1, "openat": 2}.get(name)
        if flags is not None and not info.arguments[flags] & _WRITING:
            return ""
        place = "" if path is None else _text(tid, info.arguments[path])
        if descriptor is not None and not place.startswith("/"):
            handle = info.arguments[descriptor] & 0xFFFFFFFF
            where = "cwd" if handle == _HERE else f"fd/{handle}"
            with contextlib.suppress(OSError):
                place = f"{os.readlink(f'/proc/{tid}/{where}')}/{place}".rstrip("/")
        return f"{name} {place.removeprefix(self._folder)}" if place.startswith(self._folder) else ""

    def _words(self) -> str:
        if self._said is None:
            return ""
        try:
            return os.read(self._said, 64).decode()
        except BlockingIOError:
            return ""


def _text(tid: int, address: int) -> str:
    """Return the text at an address of a stopped thread."""
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(4096).split(b"\0")[0].decode(errors="replace")


if __name__ == "__main__":
    tracer = Tracer(int(sys.argv[1]), None, Path(sys.argv[2]))
    tracer.seize()
    tracer.follow(float(sys.argv[3]), alone=True)
    print(
        json.dumps(
            {"counted": tracer.counted, "call": tracer.count, "before": tracer.last, "signal": tracer.signal}
        )
    )
