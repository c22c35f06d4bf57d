"""Finding a run by its name or by the folder of its record."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.errors import WorkspaceError
from npu_rl.common.user_path import user_path
from npu_rl.training.record.run_record import RunRecord


def locate_run(run: str, runs: Path | None) -> tuple[Path, str]:
    """Return the folder of run records for a run, and the run's name in it, without checking that it exists.

    Args:
        run: Its name, or its folder: a text with '/', or a folder with a run.json.
        runs: The folder of run records; None if there is no workspace.

    Raises:
        WorkspaceError: If it is a name, and no folder of runs is known.
    """
    folder = user_path(run)
    if "/" in run or (folder / "run.json").is_file():
        folder = folder.resolve()
        return folder.parent, folder.name
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
