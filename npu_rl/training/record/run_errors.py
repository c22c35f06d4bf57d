"""Errors about a run's record: the run exists, is missing, or is in progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.yaml_documents.suggest import nearest_names


class RunNameTaken(NpuRlError):
    """A run or another folder already has the name of a new run."""


class RunGoesOn(NpuRlError):
    """A run is in progress, or may be."""


class NoSuchRun(NpuRlError):
    """A run is missing, or was removed while its record was read."""


@contextlib.contextmanager
def removal_noticed(folder: Path) -> Iterator[None]:
    """Raise NoSuchRun for an error in the block if the run's folder is gone: another command has removed it."""
    try:
        yield
    except (OSError, HostError) as error:
        if (folder / "run.json").is_file():
            raise
        raise no_such_run(folder.parent, folder.name) from error


def exists_error(name: str, folder: Path, resumable: int | None) -> RunNameTaken:
    """Return the error for a run that exists already.

    Args:
        name: The run's.
        folder: Its folder.
        resumable: The step of a checkpoint that it can go on from.
    """
    return RunNameTaken(
        f"The run {name} already exists",
        where=str(folder),
        why="npu-rl never overwrites the record of a run.",
        hint="Choose another name with name=…"
        + (
            ""
            if resumable is None
            else f", or continue from its checkpoint of step {resumable} with --resume"
        ),
    )


def copied_error(name: str, folder: Path, pids: list[int]) -> RunGoesOn:
    """Return the error for a run whose id is used by processes started for another folder."""
    return RunGoesOn(
        f"Run {name} may still be running",
        where=f"{folder}, pid {' '.join(map(str, pids))}",
        why="These processes have the run's id, and its folder was copied or moved since they were started.",
        hint="Wait until they have ended, or choose another name with name=…",
    )


def running_error(name: str, folder: Path, pids: list[int]) -> RunGoesOn:
    """Return the error for a run in progress.

    Args:
        name: The run's.
        folder: Its folder.
        pids: Its processes on this machine.
    """
    them = " ".join(map(str, pids))
    return RunGoesOn(
        f"Run {name} is still running",
        where=f"{folder}" + (f", pid {them}" if pids else ""),
        why="Its processes are running on this machine."
        if pids
        else "Another npu-rl command has locked its folder.",
        hint="Wait until it has finished"
        + (f" or stop it (`npu-rl runs stop {name}`)" if pids else "")
        + ", or choose another name with name=…",
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


def unreadable_run(folder: Path, error: NpuRlError | OSError) -> NpuRlError:
    """Return the error for a run of which a file can't be read, with the file as its place."""
    if isinstance(error, OSError):
        place = str(error.filename or folder)
        return NpuRlError(f"Run {folder.name} can't be read", where=place, why=error.strerror or str(error))
    error.where = error.where or str(folder)
    return error


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
