"""The only file of this room that starts or signals processes.

A run's processes are told from all others by one environment variable, which every child inherits. psutil reads it,
wherever the system shows it; this room imports psutil only to look, since that costs 30 ms.
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
from typing import IO, TYPE_CHECKING

from npu_rl.disk import private
from npu_rl.errors import HostError

if TYPE_CHECKING:
    from psutil import Process


RUN_VARIABLE = "NPU_RL_RUN"

_PATIENCE = 5.0  # seconds for what outlives its driver, and after SIGTERM
_KILLED = 10.0  # seconds in which the kernel ends what got SIGKILL, unless it sits in a driver call


class Child:
    """A driver that `start` started, in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """Its exit status, or None while it lives; -N if signal N ended it."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """As `poll`, after waiting for its end for at most so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.returncode

    def signal(self, number: int) -> None:
        """Send it a signal; none if it has ended (its number may then be another's)."""
        self._process.send_signal(number)


def start(argv: list[str], *, env: Mapping[str, str], cwd: Path, output: Path) -> Child:
    """Start a driver: no standard input, everything it says appended to the file `output`.

    It gets a session of its own, so that Ctrl-C in the terminal reaches only npu-rl, which then stops the
    run in order. SPT_NOENV is added: without it setproctitle, which Ray and vLLM use, overwrites the
    memory where the system finds a process's environment. What it writes is this user's alone. Raises HostError if it
    can't be started.
    """
    environment = {"SPT_NOENV": "1", **env}
    # Path.open takes no opener
    with open(output, "ab", opener=private) as file, _interruptible():
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )
        except OSError as error:
            raise _not_started(argv, error) from error
    return Child(process)


def processes_of(run_id: str) -> list[int]:
    """Every live process of this user that carries this run's id in its environment, but never this one.

    Raises ValueError for an id that could be another program's.
    """
    from psutil import process_iter

    _demand_id(run_id)
    return sorted(p.pid for p in process_iter() if p.pid != os.getpid() and _carries(p, run_id, os.getuid()))


def stop(child: Child, run_id: str, grace: float = 15.0) -> list[int]:
    """End a run: SIGINT to the driver, then SIGTERM and at last SIGKILL to all of its processes still there.

    grace: seconds the driver has to end in order; the steps after it take 5 at most.
    An interruption while this waits (a second Ctrl-C) goes straight to SIGKILL, and then on to the caller.
    Returns the processes that needed SIGKILL. Raises HostError if even that did not end one.
    """
    left = _members(child, run_id)
    killed: list[int] = []
    try:
        if child.poll() is None:
            child.signal(signal.SIGINT)
            _until(lambda: child.poll() is not None, grace)
        _until(lambda: not left(), min(grace, _PATIENCE) if child.poll() is not None else 0)
        if _signal_all(child, left(), run_id, signal.SIGTERM):
            _until(lambda: not left(), min(grace, _PATIENCE))
    finally:
        killed += _kill(child, left, run_id)
    return killed


def end_left(run_id: str, grace: float = _PATIENCE) -> list[int]:
    """End what a run whose driver is gone has left: Ray's agents may notice its end late, or never.

    grace: seconds they have after SIGTERM. Returns the processes that needed SIGKILL. Raises HostError as `stop`.
    """

    def left() -> list[int]:
        return processes_of(run_id)

    killed: list[int] = []
    try:
        if _signal_all(None, left(), run_id, signal.SIGTERM):
            _until(lambda: not left(), grace)
    finally:
        killed += _kill(None, left, run_id)
    return killed


def _kill(child: Child | None, left: Callable[[], list[int]], run_id: str) -> list[int]:
    """SIGKILL to all, until none is left."""
    killed: list[int] = []
    deadline = time.monotonic() + _KILLED
    while pids := left():
        if time.monotonic() > deadline:
            raise _immortal(pids)
        killed += [p for p in _signal_all(child, pids, run_id, signal.SIGKILL) if p not in killed]
        time.sleep(0.05)
    return killed


def _members(child: Child, run_id: str) -> Callable[[], list[int]]:
    def left() -> list[int]:
        pids = processes_of(run_id)
        if child.poll() is None and child.pid not in pids:
            pids.append(child.pid)
        return pids

    return left


def _signal_all(child: Child | None, pids: list[int], run_id: str, number: int) -> list[int]:
    """Send a signal to those of them that are the run's; those it reached."""
    reached = []
    for pid in pids:
        if child is not None and pid == child.pid and child.poll() is None:
            child.signal(number)  # a child that nobody has waited for keeps its number
            reached.append(pid)
        elif _signal_member(pid, run_id, number):
            reached.append(pid)
    return reached


def _signal_member(pid: int, run_id: str, number: int) -> bool:
    """Send a signal to a process only if it carries the run's id at this moment. Gone is fine.

    A pidfd holds on to the process itself: had the number gone to another since, the signal would fail. psutil has
    none: between its comparison of start times and its `kill`, the number can change hands. So it signals only where
    the kernel (before 5.3) or this Python has no pidfd.
    """
    from psutil import NoSuchProcess, Process

    try:
        handle = _hold(pid)
        try:
            process = Process(pid)
            if not _carries(process, run_id):
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


def _hold(pid: int) -> int | None:
    """A pidfd; None where there are none. Raises ProcessLookupError if the process is gone."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def _demand_id(run_id: str) -> None:
    if not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z_-]{7,63}", run_id):
        raise ValueError(f"{run_id!r} is not a run id")


def _carries(process: Process, run_id: str, user: int | None = None) -> bool:
    """Whether the process was started with this run's id, by `user` if given; a zombie has no environment."""
    from psutil import Error

    try:
        return process.environ().get(RUN_VARIABLE) == run_id and user in (None, process.uids().effective)
    except (Error, OSError):  # gone, or not ours
        return False


def _until(done: Callable[[], bool], seconds: float) -> None:
    """Wait for it, at most so long."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    while not done() and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)


def _immortal(pids: list[int]) -> HostError:
    return HostError(
        "Processes of this run can't be ended",
        where="pid " + ", ".join(map(str, pids)),
        why=f"They live {_KILLED:g} seconds after SIGKILL, so they wait inside a call of the kernel or a driver.",
        hint="Look at `npu-smi info` and the system's log; a restart of the machine may be needed.",
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Children hear SIGINT even if this process was told to ignore it, as a shell tells its background jobs."""
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


def _not_started(argv: list[str], error: OSError) -> HostError:
    return HostError(
        f"{argv[0]} can't be started",
        where=str(error.filename or argv[0]),
        why=error.strerror,
        hint="Is that the training interpreter? `--python` names another.",
    )


# -- probes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """What a probe said, and its exit status (-N: ended by signal N)."""

    stdout: str
    stderr: str
    code: int


def run_quietly(argv: list[str], env: Mapping[str, str], cwd: Path, timeout: float) -> Finished:
    """Run a command to its end without showing anything, with no standard input.

    timeout: seconds; then the command and its group are killed and HostError names it. HostError also if
    it can't be started. Its output goes through files, so a child it leaves behind delays nothing.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(argv, error) from error
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            _kill_group(process)
            raise HostError(
                f"A command did not end within {timeout:g} seconds",
                where=" ".join(argv)[:500],
                why=_last_words(_content(err)) or "It wrote nothing to its standard error.",
                hint="Run it by hand to see what it waits for.",
            ) from error
        except BaseException:
            _kill_group(process)
            raise
        return Finished(_content(out), _content(err), code)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that nobody has waited for yet, and all that it started in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _last_words(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-5:])
