"""`runs stop`: end a run from another shell, or the processes that an ended run left on this host."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.process import signal_if, signal_member
from npu_rl.training.record.attempt import OUTCOMES
from npu_rl.training.record.other_host import other_host_error, other_host_of
from npu_rl.training.record.recorded_attempt import optional_object
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.rehearsal_end import rehearsing_pid
from npu_rl.training.record.run_record import RunRecord

_DRIVER_GRACE = 15.0  # seconds that a driver without npu-rl has to end in order
_WORKER_GRACE = 5.0  # and that workers have after SIGTERM
_PAUSE = 0.1


@dataclass(frozen=True)
class StoppedRun:
    """The result of stopping a run.

    Attributes:
        how: "in order" (npu-rl ended it), "forced" (npu-rl did not end it in time), "leftover" (there was no npu-rl
            any more, and processes were ended), or "ended before".
        pids: Processes of the run that were there, and have ended.
        killed: Those of them that needed SIGKILL by this command.
        outcome: Of its last attempt, or of a rehearsal without one, as recorded now; None if nothing was begun.
    """

    run: str
    how: str
    pids: tuple[int, ...]
    killed: tuple[int, ...]
    outcome: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the result as documented in docs/json.md."""
        return dict(vars(self))


def stop_run(
    record: RunRecord, grace: float, notify: Callable[[str], None], *, ended_on: str | None = None
) -> StoppedRun:
    """End a run, wait until all its processes on this host have ended, and complete its record.

    Args:
        record: The run's.
        grace: Seconds for its npu-rl to end it in order; if below 5, also the limit for its workers.
        notify: Receives progress messages.
        ended_on: Another host, where the run was begun and has ended without a recorded end.

    Raises:
        NpuRlError: If another host or user runs it, or another host may, another command uses its record, or its
            folder was copied or moved since its processes were started.
        HostError: If a process lives even after SIGKILL.
    """
    host = None if record.is_locked else other_host_of(record.attempts)
    if host is not None and host != ended_on:
        raise other_host_error(record.name, record.folder, host)
    before = record.processes()
    how, killed = "ended before", list[int]()
    if record.is_locked:
        how, killed = _end_launcher(record, grace, notify)
    elif before:
        how = "leftover"
        _interrupt_driver(record, before, notify)
    killed += [pid for pid in record.stop_processes(min(grace, _WORKER_GRACE)) if pid not in killed]
    with record.settled(ended_on=ended_on):
        pass
    return StoppedRun(record.name, how, tuple(before), tuple(killed), _outcome(record))


def _end_launcher(record: RunRecord, grace: float, notify: Callable[[str], None]) -> tuple[str, list[int]]:
    """Have a run's npu-rl end the run. Returns the outcome, and the processes that needed SIGKILL."""
    last = record.attempts[-1] if record.attempts else None
    in_attempt = last is not None and last.outcome is None
    launcher = last.launcher if last is not None and in_attempt else rehearsing_pid(record.facts)
    if launcher is None or not signal_if(launcher, record.is_held_by, signal.SIGTERM):
        if not record.is_locked:  # it has ended at this moment
            return "in order", []
        raise _elsewhere_error(record)
    signal_if(launcher, record.is_held_by, signal.SIGCONT)  # one that was suspended by Ctrl-Z
    notify(
        f"Sent SIGTERM to the npu-rl of {record.name} (pid {launcher}); waiting for it to end the run in order"
    )
    if _wait(lambda: not record.is_locked, grace):
        return "in order", []
    notify(f"It has not done so within {grace:g} s: ending the run's processes")
    killed = record.stop_processes(min(grace, _WORKER_GRACE))
    if not _wait(lambda: not record.is_locked, min(grace, _DRIVER_GRACE)):
        if signal_if(launcher, record.is_held_by, signal.SIGKILL):
            killed.append(launcher)
        if not _wait(lambda: not record.is_locked, _DRIVER_GRACE):
            raise HostError(
                f"The npu-rl of run {record.name} can't be ended",
                where=f"pid {launcher}",
                why=f"It is still alive {_DRIVER_GRACE:g} seconds after SIGKILL.",
                hint="Check the system log; the machine may need a restart.",
            )
    return "forced", killed


def _outcome(record: RunRecord) -> str | None:
    """Return the outcome of a run that has ended; for a rehearsal without an attempt, from its verdict or end."""
    if record.attempts:
        return record.attempts[-1].outcome
    state = recorded_run(record.folder.parent, record.name).state
    return state if state in OUTCOMES else None


def _interrupt_driver(record: RunRecord, pids: list[int], notify: Callable[[str], None]) -> None:
    """Interrupt a live driver whose npu-rl was killed, so that it ends in order."""
    driver = record.attempts[-1].driver if record.attempts else None
    if driver is None or driver not in pids:
        return
    if not any(signal_member(driver, mark, signal.SIGINT) for mark in record.marks):
        return
    notify(f"Sent SIGINT to the trainer of {record.name} (pid {driver}), whose npu-rl has ended")
    _wait(lambda: driver not in record.processes(), _DRIVER_GRACE)


def _elsewhere_error(record: RunRecord) -> NpuRlError:
    host = _host(record)
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


def _host(record: RunRecord) -> str | None:
    last = record.attempts[-1] if record.attempts else None
    if last is None or last.outcome is not None:
        return None
    name = optional_object(last.folder / "host.json").get("hostname")
    return name if isinstance(name, str) else None


def _wait(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, with a time limit. Returns whether it holds."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True
