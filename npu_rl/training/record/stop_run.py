"""`runs stop`: end a run from another shell, by its npu-rl."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.training.record.attempt import Started
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord

_KILL_TIMEOUT = 15.0  # seconds for processes to end after SIGKILL
_PAUSE = 0.1


@dataclass(frozen=True)
class StoppedRun:
    """The result of stopping a run.

    Attributes:
        how: "in order" (npu-rl ended it), "by force" (npu-rl did not end it in time, and was killed), or "ended
            before".
        state: The run's state now.
    """

    run: str
    how: str
    state: str


def stop_run(record: RunRecord, grace: float, notify: Callable[[str], None]) -> StoppedRun:
    """End a run, and wait until its npu-rl and its driver have ended.

    Args:
        record: The run's.
        grace: Seconds for its npu-rl to end it in order. Killed after that, it takes its driver and its Ray with it.
        notify: Receives progress messages.

    Raises:
        NpuRlError: If another host or user runs it, or another host may.
        HostError: If npu-rl or the driver lives even after SIGKILL.
    """
    how = "ended before"
    if record.is_locked:
        how = _end(record, grace, notify)
    else:
        record.require_ended()
    return StoppedRun(record.name, how, recorded_run(record.folder.parent, record.name).state)


def _end(record: RunRecord, grace: float, notify: Callable[[str], None]) -> str:
    npu_rl = record.npu_rl_process
    driver = next((attempt.driver for attempt in record.attempts[-1:]), None)
    if not _signalled(npu_rl, signal.SIGTERM):
        if not record.is_locked:  # it has ended at this moment
            return "in order"
        raise _elsewhere_error(record)
    _signalled(npu_rl, signal.SIGCONT)  # one that was suspended by Ctrl-Z
    notify(
        f"Sent SIGTERM to the npu-rl of {record.name} (pid {npu_rl.pid}); waiting for it to end the run in order"
    )
    if _wait(lambda: not record.is_locked, grace):
        return "in order"
    notify(f"It has not done so within {grace:g} s: killing it, and the run with it")
    _signalled(npu_rl, signal.SIGKILL)
    processes = [npu_rl, *filter(None, [driver])]
    if not _wait(lambda: not any(one.is_alive for one in processes), _KILL_TIMEOUT):
        raise HostError(
            f"Run {record.name} can't be ended",
            where="pid " + ", ".join(str(one.pid) for one in processes if one.is_alive),
            why=f"It is still alive {_KILL_TIMEOUT:g} seconds after SIGKILL: it waits in a kernel or driver call.",
            hint="Look at `npu-smi info` and the system's log; a restart of the machine may be needed.",
        )
    return "by force"


def _signalled(process: Started, number: int) -> bool:
    """Send a signal to a process if it is alive on this host, and may be signalled; return whether it was sent."""
    if not process.is_alive:
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _elsewhere_error(record: RunRecord) -> NpuRlError:
    host = record.other_host
    return NpuRlError(
        f"Run {record.name} is in use, and its npu-rl is not a process of this host that you can signal",
        where=str(record.folder),
        why=f"Its last attempt was begun on {host}."
        if host
        else "Another npu-rl command has locked its folder.",
        hint=f"Run the same command on {host}, as the user that began it."
        if host
        else "Repeat it in a moment.",
    )


def _wait(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, with a time limit. Returns whether it holds."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True
