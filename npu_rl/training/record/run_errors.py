"""Errors about a run's record: the run exists, is missing, or is in progress."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.suggest import nearest_names


class RunNameTaken(NpuRlError):
    """A run or another folder already has the name of a new run."""


class RunGoesOn(NpuRlError):
    """A run is in progress, or may be."""


class RunMayGoOnElsewhere(RunGoesOn):
    """A run may be in progress on another host."""


class NoSuchRun(NpuRlError):
    """A run is missing."""


def exists_error(name: str, folder: Path, resumable: int | None) -> RunNameTaken:
    """Return the error for a run that exists already.

    Args:
        name: The run's.
        folder: Its folder.
        resumable: The step of a checkpoint that it can go on from.
    """
    go_on = (
        "" if resumable is None else f", or continue from its checkpoint of step {resumable} with --resume"
    )
    return RunNameTaken(
        f"The run {name} already exists",
        where=str(folder),
        why="npu-rl never overwrites the record of a run.",
        hint=f"Choose another name with name=…{go_on}",
    )


def running_error(name: str, folder: Path, pid: int) -> RunGoesOn:
    """Return the error for a run in progress, by its npu-rl's process id on the host that runs it."""
    stop = f"npu-rl runs stop {shlex.quote(str(folder))}"
    return RunGoesOn(
        f"Run {name} is still running",
        where=f"{folder}, pid {pid}",
        why="Its npu-rl has locked its folder.",
        hint=f"Wait until it has finished, stop it ({stop}), or choose another name with name=…",
    )


def other_host_error(name: str, folder: Path, host: str) -> RunMayGoOnElsewhere:
    """Return the error for a run that may still be active on another host."""
    return RunMayGoOnElsewhere(
        f"The state of run {name} is unknown, begun on {host}",
        where=str(folder),
        why=f"It has no recorded end, and its processes can't be seen from {socket.gethostname()}.",
        hint=f"Look on {host} (npu-rl runs show {name}). If it has ended there: --resume --ended-on {host}",
    )


def name_taken_error(folder: Path, name: str) -> RunNameTaken:
    """Return the error for a run's folder that exists already."""
    if not (folder / "run.json").is_file():
        return RunNameTaken(
            f"The folder of run {name} is taken by something that is not a run",
            where=str(folder),
            hint="Move it away, or choose another name with name=…",
        )
    return exists_error(name, folder, None)  # another command began it at this moment


def no_such_run(root: Path, name: str) -> NoSuchRun:
    """Return the error for a run that is missing from a folder of runs."""
    known = sorted(path.parent.name for path in root.glob("*/run.json"))
    near = nearest_names(name, known, 3)
    more = "" if near or len(known) <= 5 else f" and {len(known) - 5} more"
    return NoSuchRun(
        f"Unknown run {name}",
        where=str(root),
        hint=f"Did you mean {' or '.join(near)}? `npu-rl runs list` lists all"
        if near
        else f"Existing runs: {', '.join(known[:5])}{more}"
        if known
        else "No run is recorded there; `npu-rl train RECIPE` without --resume begins one.",
    )
