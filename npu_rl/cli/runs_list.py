"""The command `npu-rl runs list`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Workspace
from npu_rl.cli.show import print_json, say_table, tell


@examples(
    "npu-rl runs list",
    "npu-rl runs list --rehearsals",
    "npu-rl runs list --json",
)
def list_runs(
    rehearsals: Annotated[bool, typer.Option("--rehearsals", help="List rehearsals, too.")] = False,
    workspace: Workspace = None,
    json: Json = False,
) -> None:
    """List the recorded runs.

    The reward is the mean of the last step that has one. A run is running, done, failed (also if it ended early or
    missed its goal), stopped (by you or an alarm), killed (npu-rl was), new (no attempt was begun), or unknown (begun
    on another host, and without an end).
    """
    from npu_rl.cli.recorded import runs_root
    from npu_rl.common.printable import counted
    from npu_rl.training.browse.run_rows import HEADS, read_rows, row_cells, run_row
    from npu_rl.training.record.recorded_run import recorded_runs
    from npu_rl.workspace.folder.discovery import open_workspace

    root = runs_root(workspace) or open_workspace(workspace, tell).root / "runs"
    found, errors = recorded_runs(root)
    shown = [run for run in found if rehearsals or not run.fact("rehearsal")]
    left_out = len(found) - len(shown)
    if json:
        rows = read_rows(shown, run_row, errors)
        print_json(
            {
                "folder": str(root),
                "runs": rows,
                "rehearsals_left_out": left_out,
                "unreadable": [str(error.where) for error in errors],
            }
        )
        return
    if cells := read_rows(shown, row_cells, errors):
        say_table(HEADS, cells)
    elif not errors:
        tell(f"No runs in {root}; `npu-rl train RECIPE` begins one.")
    for error in errors:
        tell(f"Unreadable: {error.where}: {error.why}")
    if left_out:
        tell(f"{counted(left_out, 'rehearsal')} left out; --rehearsals lists them")
