"""Messages of git as errors: without secrets and control characters, one error class per kind of failure."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from npu_rl.common.disk import store_hint
from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.printable import printable

_MAXIMUM_LINES = 200  # of a remote's messages
_DISK_FULL = re.compile(
    "No space left on device|Disk quota exceeded|Read-only file system|Out of diskspace|File too large"
    "|unable to (write|create) file",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Mask passwords and tokens in URLs."""
    from npu_rl.common.masking import (
        without_passwords,  # its patterns take milliseconds, and git rarely complains
    )

    return without_passwords(text)


class GitError(NpuRlError):
    """A git command failed; `stderr` has its printable messages, `code` its status (negative: killed by a signal).

    Attributes:
        stalled: Seconds without data, if that is why it was stopped.
        received_data: Whether it had sent any data before.
    """

    def __init__(
        self,
        args: Sequence[str],
        code: int,
        stderr: str,
        *,
        stalled: float | None = None,
        received_data: bool = True,
    ) -> None:
        self.command = "git " + " ".join(args[:6]) + (" …" if len(args) > 6 else "")
        self.code = code
        self.stderr = printable(redact(stderr)).strip()
        self.stalled = stalled
        self.received_data = received_data
        why = self.stderr or _exit_reason(code)
        if stalled is not None:
            why = f"no data for {stalled:g} seconds"
        super().__init__(f"{redact(self.command)} failed", why=why)


def _exit_reason(code: int) -> str:
    """Describe an exit status, for a git that printed no message."""
    if code == -signal.SIGPIPE:
        return "the remote closed the connection before git sent its request"
    if code < 0:
        return f"git was killed by signal {-code}"
    return f"exit status {code}"


class GitStopped(NpuRlError):
    """A transfer was stopped because another one failed, or by the user."""

    def __init__(self) -> None:
        super().__init__("Stopped")


def check_disk(stderr: str, place: Path) -> None:
    """Raise HostError if git's messages report a full or read-only local disk (not the remote's)."""
    lines = (line for line in stderr.splitlines() if not line.startswith("remote:"))
    line = next((line for line in lines if _DISK_FULL.search(line)), None)
    if line is not None:
        what, hint = (
            "The disk is full",
            store_hint(errno.ENOSPC, str(place)) or "Free some space, then run again.",
        )
        if "read-only" in line.lower():
            what = "The file system is read-only"
            hint = store_hint(errno.EROFS, str(place)) or "Choose another folder."
        elif "too large" in line:
            what, hint = "A file is too large for this disk, or for `ulimit -f`", "Choose another folder."
        elif "unable to" in line and "No space" not in line:  # git does not say why
            what = "git could not write a file: the disk may be full"
        raise HostError(what, where=str(place), why=printable(redact(line)), hint=hint)


_NO_ROOM_TO_START = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


def not_started(error: OSError, minimum: str) -> NpuRlError:
    """Return the error for a git that could not be started. minimum: the oldest version that will do."""
    install = f"Install git {minimum} or newer (apt install git, yum install git)."
    if error.errno in _NO_ROOM_TO_START:
        return HostError(
            "git can't be started",
            why=error.strerror,
            hint="Raise the limits of this shell (ulimit -n 1024, ulimit -u), or stop other programs.",
        )
    if not isinstance(error, FileNotFoundError):
        return HostError("git can't be started", why=error.strerror, hint=install)
    if error.filename and str(error.filename) != "git":
        return HostError(f"The folder {error.filename} no longer exists", hint="Run the command again.")
    return HostError("git is not installed, or not on PATH", hint=install)


class MessageStream:
    """Splits the stderr of git into messages and progress lines."""

    _PROGRESS = re.compile(
        r"^(remote: )?(Receiving|Resolving|Counting|Compressing|Enumerating|Unpacking|Checking)\b"
        r"|^remote: Total"
    )

    def __init__(self, on_progress: Callable[[str], None] | None) -> None:
        self.received_data = False
        self._on_progress = on_progress
        self._lines: list[str] = []
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        """Add output of git."""
        self.received_data = True
        *lines, self._unfinished = re.split(rb"[\r\n]", self._unfinished + data)
        self._unfinished = self._unfinished[-65536:]
        for line in lines:
            self._line(line.decode("utf-8", "replace").strip())

    def _line(self, line: str) -> None:
        if not line:
            return
        if self._PROGRESS.match(line):
            if self._on_progress is not None:
                self._on_progress(printable(line))
        else:
            self._lines.append(line)
            del self._lines[:-_MAXIMUM_LINES]

    def text(self) -> str:
        """Return the messages, without progress lines."""
        self._line(self._unfinished.decode("utf-8", "replace").strip())
        self._unfinished = b""
        return "\n".join(self._lines)
