"""Runs that were begun on another host and have no recorded end: it is unknown here whether they are still in progress.

The lock of a run does not tell either on shared disks whose locks hold on one host only: NFS with nolock, Lustre
without -o flock.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.recorded_attempt import optional_object
from npu_rl.training.record.run_errors import RunGoesOn


class RunMayGoOnElsewhere(RunGoesOn):
    """A run may be in progress on another host."""


def other_host_of(attempts: Sequence[Attempt]) -> str | None:
    """Return the host where a run's last attempt was begun if that has no end, and is not this host; else None."""
    if not attempts or attempts[-1].outcome is not None:
        return None
    name = optional_object(attempts[-1].folder / "host.json").get("hostname")
    return name if isinstance(name, str) and name != socket.gethostname() else None


def other_host_error(name: str, folder: Path, host: str) -> RunMayGoOnElsewhere:
    """Return the error for a run that may still be active on another host."""
    ended = shlex.join(["npu-rl", "runs", "stop", name, "--ended-on", host])
    return RunMayGoOnElsewhere(
        f"Run {name} may still be active on {host}",
        where=str(folder),
        why=f"It was begun there, has no recorded end, and its processes can't be seen from {socket.gethostname()}.",
        hint=f"Run the same command on {host}. If that is gone, or no longer runs it: {ended}",
    )
