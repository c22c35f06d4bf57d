"""A run by its name, or by the folder of its record."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.common.user_path import user_path


def locate_run(run: str, runs: Path | None) -> tuple[Path, str]:
    """Return the folder of run records that has a run, and the run's name there; whether it exists is not checked.

    Args:
        run: Its name, or its folder: a text with '/', or a folder with a run.json.
        runs: The folder of run records; None if there is no workspace.

    Raises:
        UsageError: If it is a name, and no folder of runs is known.
    """
    folder = user_path(run)
    if "/" in run or (folder / "run.json").is_file():
        folder = folder.resolve()
        return folder.parent, folder.name
    if runs is None:
        raise UsageError(
            f"The folder of run {run} is not known",
            why="There is no workspace here, and NPU_RL_RUNS is not set.",
            hint="Name the workspace with --workspace, or give the run's folder.",
        )
    return runs, run
