"""A rehearsal that has no verdict: who began it, how it ended, and what its state is.

Its levels imports and layout have no attempt, and between two attempts of the others it goes on, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.masking import Secrets
from npu_rl.training.record.attempt import now, recorded_error, seconds_of, write_json
from npu_rl.training.record.recorded_attempt import RecordedAttempt, optional_object
from npu_rl.training.record.run_lock import LOCK

REHEARSAL_END = "rehearsal-end.json"
_CLOCK = 2.0  # seconds by which a recorded time and a process's start may be rounded


def rehearsing_process(*, has_verdict: bool) -> dict[str, Any]:
    """Return this process, for the run.json of a rehearsal that it begins.

    Args:
        has_verdict: Whether the rehearsal gets a rehearsal.json; the verdict of one case is in that of all.
    """
    return {"pid": os.getpid(), "hostname": socket.gethostname(), "has_verdict": has_verdict}


@contextmanager
def end_recorded(folder: Path, secrets: Secrets) -> Iterator[None]:
    """Record the end of a rehearsal whose block ends in an error: "failed" with the error, or "stopped" by a signal.

    Args:
        folder: The rehearsal's folder of run records.
        secrets: Masked in the error.
    """
    try:
        yield
    except BaseException as error:
        with suppress(OSError, HostError):  # the error itself is what counts
            write_json(folder / REHEARSAL_END, _end(error, secrets))
        raise


def _end(error: BaseException, secrets: Secrets) -> dict[str, Any]:
    end: dict[str, Any] = {"outcome": "stopped", "ended": now()}
    if not isinstance(error, Exception) or getattr(error, "exit_code", 1) >= 128:
        return end
    return {**end, "outcome": "failed", "error": recorded_error(error, secrets)}


def rehearsal_error(folder: Path) -> dict[str, str]:
    """Return the recorded error of a failed rehearsal (what, where, why, hint); empty of others."""
    error = optional_object(folder / REHEARSAL_END).get("error")
    return {str(name): str(text) for name, text in error.items()} if isinstance(error, dict) else {}


def rehearsing_pid(facts: Mapping[str, Any]) -> int | None:
    """Return the process that began a rehearsal, from the content of its run.json, or None."""
    begun = facts.get("rehearsing")
    pid = begun.get("pid") if isinstance(begun, dict) else None
    return pid if type(pid) is int else None


def rehearsal_state(folder: Path, facts: Mapping[str, Any], last: RecordedAttempt | None) -> str | None:
    """Return the state of a rehearsal without a verdict; None if it is that of its last attempt, or it was not begun.

    It is "running", "stopped", "failed", "killed", or "unknown" if it was begun on another host.

    Args:
        folder: Its folder.
        facts: The content of its run.json.
        last: Its last attempt; None if it has none.
    """
    begun = facts.get("rehearsing")
    known = begun if isinstance(begun, dict) else {}
    gets_verdict = known.get("has_verdict") is True
    ended = optional_object(folder / REHEARSAL_END).get("outcome")
    if ended in ("failed", "stopped"):
        return str(ended)
    if (gets_verdict or last is None) and _is_alive(known, facts):
        return "running"
    if last is not None and (last.outcome != "done" or not gets_verdict):
        return None
    if known.get("hostname", socket.gethostname()) != socket.gethostname():
        return "unknown"
    # Without `rehearsing`, as in npu-rl 0.1.0, the lock of its first levels shows that they were begun.
    return "killed" if known or (folder / LOCK).is_file() else None


def _is_alive(known: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Return whether the process that began a rehearsal is alive on this host; one with a reused id is younger."""
    from psutil import STATUS_ZOMBIE, Error, Process

    pid, created = rehearsing_pid(facts), seconds_of(facts.get("created"))
    if pid is None or created is None or known.get("hostname") != socket.gethostname():
        return False
    try:
        process = Process(pid)
        return process.create_time() < created + _CLOCK and process.status() != STATUS_ZOMBIE
    except (Error, ValueError, OverflowError):
        return False
