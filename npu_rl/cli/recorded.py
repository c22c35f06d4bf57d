"""Common code of the commands on recorded runs: the folder of runs, and a run by name or folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.cli.show import tell

if TYPE_CHECKING:
    from npu_rl.training.record.recorded_run import RecordedRun
    from npu_rl.training.record.run_record import RunRecord


def runs_root(workspace: Path | None) -> Path | None:
    """Return the folder of run records: NPU_RL_RUNS, else the workspace's, if there is one."""
    import os

    from npu_rl.common.environment_variables import RUNS
    from npu_rl.common.user_path import user_path
    from npu_rl.workspace.folder.discovery import open_workspace_if_any

    named = os.environ.get(RUNS.name)
    if named:
        return user_path(named, RUNS.name).absolute()
    layout = open_workspace_if_any(workspace, tell)
    return None if layout is None else layout.root / "runs"


def read_run(run: str, workspace: Path | None) -> RecordedRun:
    """Return a run as currently recorded."""
    from npu_rl.training.record.locate_run import locate_run
    from npu_rl.training.record.recorded_run import recorded_run

    return recorded_run(*locate_run(run, runs_root(workspace)))


def find_record(run: str, workspace: Path | None) -> RunRecord:
    """Return the record of a run, for changes."""
    from npu_rl.training.record.locate_run import run_record

    return run_record(run, runs_root(workspace))
