"""Processes of a run and workers: starting, finding, signalling and stopping them.

A run's processes are those with its mark in an environment variable that every child inherits. psutil, which reads it,
takes 30 ms to import, so it is imported only when processes are looked up.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from npu_rl.common.disk import private
from npu_rl.common.errors import HostError

if TYPE_CHECKING:
    from psutil import Process


RUN_VARIABLE = "NPU_RL_RUN"
PARENT_VARIABLE = "NPU_RL_PARENT"
"""This process for its children, which end with it (`sitecustomize` of training/injected): id and start."""

_GRACE = 5.0  # seconds for processes to end after their driver, and after SIGTERM
_KILL_TIMEOUT = 10.0  # seconds for processes to end after SIGKILL; one inside a device driver's call may not


class Child:
    """A driver that was started in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """Return its exit status (-N for signal N), or None while it is running."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end for at most `timeout` seconds, and return what `poll` returns."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.returncode

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)


def start(argv: list[str], *, env: Mapping[str, str], cwd: Path, output: Path) -> Child:
    """Start a driver in a session of its own, without standard input, its output appended to a file.

    Ctrl-C in the terminal then reaches only npu-rl, which stops the run in order. SPT_NOENV is set because
    setproctitle, which Ray and vLLM use, otherwise overwrites the memory from which the kernel shows a process's
    environment. Files that the driver creates are readable by this user only. Raises HostError if it can't be started.
    """
    environment = {"SPT_NOENV": "1", **env}
    # Path.open has no parameter `opener`.
    with open(output, "ab", opener=private) as file, _default_sigint():
        return Child(_started(argv, environment, cwd, stdout=file, stderr=subprocess.STDOUT, umask=0o077))


def _started(
    argv: list[str], env: Mapping[str, str], cwd: Path, stdin: int = subprocess.DEVNULL, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own. Raises HostError if it can't be started."""
    environment = {**env, PARENT_VARIABLE: f"{os.getpid()} {_start_tick(os.getpid())}"}
    try:
        return subprocess.Popen(
            argv, env=environment, cwd=cwd, stdin=stdin, start_new_session=True, **options
        )
    except OSError as error:
        raise HostError(
            f"{argv[0]} can't be started",
            where=str(error.filename or argv[0]),
            why=error.strerror,
            hint="Is that the training interpreter? `--python` names another.",
        ) from error


def start_mark(pid: int) -> str | None:
    """Return when a process was started, as text that no other process with its id has; None if it has ended.

    On Linux this is the boot and the clock tick since then, which no change of the clock moves. Unlike a process's
    environment, which reads empty for a moment after `exec`, it is there from the first instruction on. A zombie has
    ended.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _start_time(pid)
    tick = _start_tick(pid)
    return None if tick is None else f"{boot} {tick}"


def _start_tick(pid: int) -> int | None:
    """Return the clock tick since the boot when a process was started; None if it has ended, and without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])  # 22 in proc(5), from "(comm) " on


def _start_time(pid: int) -> str | None:
    """Return what psutil knows of a process's start, where there is no /proc; None if the process has ended."""
    from psutil import STATUS_ZOMBIE, NoSuchProcess, Process

    try:
        process = Process(pid)
        return None if process.status() == STATUS_ZOMBIE else repr(process.create_time())
    except NoSuchProcess:
        return None


def processes_of(run_id: str) -> list[int]:
    """Return this user's other live processes with a mark."""
    from psutil import process_iter

    _require_run_id(run_id)
    user = os.getuid()
    return sorted(p.pid for p in process_iter() if p.pid != os.getpid() and _belongs_to_run(p, run_id, user))


def stop(child: Child, run_id: str, grace: float = 15.0) -> list[int]:
    """Stop a run: SIGINT to the driver, then SIGTERM and finally SIGKILL to all its remaining processes.

    An interruption while this waits (a second Ctrl-C) leads to SIGKILL at once, and is raised afterwards. Returns the
    processes that needed SIGKILL. Raises HostError if one is alive even then.

    Args:
        grace: Seconds that the driver has to end in order; each later step takes 5 at most.
    """

    def remaining() -> list[int]:
        pids = processes_of(run_id)
        if child.poll() is None and child.pid not in pids:
            pids.append(child.pid)
        return pids

    killed: list[int] = []
    try:
        if child.poll() is None:
            child.signal(signal.SIGINT)
            _wait_until(lambda: child.poll() is not None, grace)
        _wait_until(lambda: not remaining(), min(grace, _GRACE) if child.poll() is not None else 0)
        if _signal_all(child, remaining(), run_id, signal.SIGTERM):
            _wait_until(lambda: not remaining(), min(grace, _GRACE))
    finally:
        killed += _kill(child, remaining, run_id)
    return killed


def stop_remaining(run_id: str, grace: float = _GRACE) -> list[int]:
    """Stop the processes of a run whose driver has ended; Ray's agents may notice that late or never.

    Returns the processes that needed SIGKILL. Raises HostError if one is alive even then.

    Args:
        grace: Seconds that they have after SIGTERM.
    """

    def remaining() -> list[int]:
        return processes_of(run_id)

    killed: list[int] = []
    try:
        if _signal_all(None, remaining(), run_id, signal.SIGTERM):
            _wait_until(lambda: not remaining(), grace)
    finally:
        killed += _kill(None, remaining, run_id)
    return killed


def _kill(child: Child | None, remaining: Callable[[], list[int]], run_id: str) -> list[int]:
    """Send SIGKILL to all processes until none remains."""
    killed: list[int] = []
    deadline = time.monotonic() + _KILL_TIMEOUT
    while pids := remaining():
        if time.monotonic() > deadline:
            raise _unkillable_error(pids)
        killed += [p for p in _signal_all(child, pids, run_id, signal.SIGKILL) if p not in killed]
        time.sleep(0.05)
    return killed


def _signal_all(child: Child | None, pids: list[int], run_id: str, number: int) -> list[int]:
    """Send a signal to those of the processes that belong to the run, and return the ones that received it."""
    reached = []
    for pid in pids:
        if child is not None and pid == child.pid and child.poll() is None:
            child.signal(number)  # its process id can't be reused before it is waited for
            reached.append(pid)
        elif _signal_member(pid, run_id, number):
            reached.append(pid)
    return reached


def _signal_member(pid: int, run_id: str, number: int) -> bool:
    """Send a signal to a process if it still belongs to the run; return whether it was sent.

    A pidfd refers to the process itself, so the signal fails if the process id was reused. psutil compares start times
    and then calls `kill`, and the id can be reused in between; it is used only if the kernel (before 5.3) or this
    Python has no pidfd.
    """
    from psutil import NoSuchProcess, Process

    try:
        handle = _open_pidfd(pid)
        try:
            process = Process(pid)
            if not _belongs_to_run(process, run_id):
                return False
            if handle is None:
                process.send_signal(number)
            else:
                signal.pidfd_send_signal(handle, number)
        finally:
            if handle is not None:
                os.close(handle)
    except (NoSuchProcess, ProcessLookupError):
        return False
    return True


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd, or None if the system doesn't support it. Raises ProcessLookupError if the process has ended."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def _require_run_id(run_id: str) -> None:
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_-]{7,63}", run_id):
        raise ValueError(f"{run_id!r} is not a run id")


def _belongs_to_run(process: Process, run_id: str, user: int | None = None) -> bool:
    """Return whether a process was started with the run's mark, by `user` if given. A zombie has no environment."""
    from psutil import Error

    try:
        return process.environ().get(RUN_VARIABLE) == run_id and user in (None, process.uids().effective)
    except (Error, OSError):  # ended, or another user's
        return False


def _wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    while not done() and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)


def _unkillable_error(pids: list[int]) -> HostError:
    return HostError(
        "Processes of this run can't be ended",
        where="pid " + ", ".join(map(str, pids)),
        why=f"{_KILL_TIMEOUT:g} seconds after SIGKILL they are still alive: they wait in a kernel or driver call.",
        hint="Look at `npu-smi info` and the system's log; a restart of the machine may be needed.",
    )


@contextlib.contextmanager
def _default_sigint() -> Iterator[None]:
    """Restore SIGINT's default meanwhile: a shell's background jobs ignore it, and children inherit that."""
    ignored = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    )
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


# -- workers -------------------------------------------------------------------------------------------


class WorkerProcess:
    """A process that replies to lines on its standard input with lines on its standard output.

    It is in a session of its own, so that Ctrl-C reaches only npu-rl. When npu-rl ends, its input is closed, too.
    """

    def __init__(self, argv: list[str], env: Mapping[str, str]) -> None:
        """Start it. Raises HostError if it can't be started."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        pipe = subprocess.PIPE
        try:
            self._process = _started(argv, env, Path(os.sep), pipe, stdout=pipe, stderr=self._errors)
        except HostError:
            self._errors.close()
            raise

    def send(self, line: str) -> None:
        """Write a line; if the process has ended, the line is lost, and `receive` returns None."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def receive(self) -> str | None:
        """Wait for a line; None if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return line.decode("utf-8", "replace") if line.endswith(b"\n") else None

    def last_words(self) -> str:
        """Return its exit status and the last lines of its standard error, as text."""
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return "\n".join(filter(None, (how, _last_lines(_content(self._errors)))))

    def kill(self) -> None:
        """Kill it and its own processes, and wait for it to exit."""
        _kill_group(self._process)

    def close(self) -> None:
        """Close its files, after `kill`."""
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


# -- probes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompletedCommand:
    """Output and exit status (-N for signal N) of a command."""

    stdout: str
    stderr: str
    code: int


def run_quietly(
    argv: list[str], env: Mapping[str, str], cwd: Path, timeout: float, stdin: IO[bytes] | None = None
) -> CompletedCommand:
    """Run a command to its end, by default without standard input, and capture its output.

    The output goes through files, so that a process which the command leaves behind does not delay the return. Raises
    HostError if the command can't be started or does not end within `timeout` seconds, after which its process group
    is killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        source = subprocess.DEVNULL if stdin is None else stdin.fileno()
        process = _started(argv, env, cwd, source, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            _kill_group(process)
            raise HostError(
                f"A command did not end within {timeout:g} seconds",
                where=" ".join(argv)[:500],
                why=_last_lines(_content(err)) or "It wrote nothing to its standard error.",
                hint="Run it by hand to see what it waits for.",
            ) from error
        except BaseException:
            _kill_group(process)
            raise
        return CompletedCommand(_content(out), _content(err), code)


def start_piped(argv: list[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, without standard input, both its outputs in one pipe.

    Raises HostError if it can't be started.
    """
    return _started(argv, env, cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run_shown(
    argv: list[str], env: Mapping[str, str], cwd: Path, show: Callable[[str], None]
) -> CompletedCommand:
    """Run a command to its end without standard input, and pass on each line of its output as it comes.

    Its process group is killed if this is interrupted. Raises HostError if the command can't be started.
    """
    process = start_piped(argv, env, cwd)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        with process.stdout as output:
            for line in output:
                lines.append(line.decode("utf-8", "replace"))
                show(lines[-1].rstrip())
        code = process.wait()
    except BaseException:
        _kill_group(process)
        raise
    return CompletedCommand("".join(lines), "", code)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was not waited for yet, and all others in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(
        subprocess.TimeoutExpired
    ):  # one that waits inside a device driver outlives SIGKILL
        process.wait(_GRACE)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-5:])
