"""Finding a run by its name or by the folder of its record."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.errors import WorkspaceError
from npu_rl.common.user_path import user_path
from npu_rl.training.record.run_errors import NoSuchRun
from npu_rl.training.record.run_record import RunRecord


def locate_run(run: str, runs: Path | None) -> tuple[Path, str]:
    """Return the folder of run records for a run, and the run's name in it, without checking that it exists.

    Args:
        run: Its name, or its folder: a text with '/', or without a folder of runs one with a run.json.
        runs: The folder of run records; None if there is no workspace.

    Raises:
        WorkspaceError: If it is a name, and no folder of runs is known.
        NoSuchRun: If it is the name of a folder here, and not of a run in the folder of runs.
    """
    folder = user_path(run)
    is_here = "/" not in run and (folder / "run.json").is_file()
    if "/" in run or (is_here and runs is None):
        folder = folder.resolve()
        return folder.parent, folder.name
    if runs is not None and is_here and not (runs / run / "run.json").is_file():
        raise NoSuchRun(f"Unknown run {run}", where=str(runs), hint=f"The record in this folder is ./{run}")
    if runs is None:
        raise WorkspaceError(
            "No workspace found here or in a parent folder",
            where=str(Path.cwd()),
            why=f"{run} is the name of a run, and runs are recorded in workspaces. NPU_RL_RUNS is not set.",
            hint="Pass the workspace with --workspace, or the run's folder.",
        )
    return runs, run


def run_record(run: str, runs: Path | None) -> RunRecord:
    """Return the record of a run found by `locate_run`.

    Raises:
        WorkspaceError: As `locate_run`.
        NoSuchRun: If the run is missing.
    """
    return RunRecord.load(*locate_run(run, runs))
