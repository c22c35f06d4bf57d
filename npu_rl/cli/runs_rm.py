"""The command `npu-rl runs rm`."""

from __future__ import annotations

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Workspace
from npu_rl.cli.recorded import Run, find_record
from npu_rl.cli.show import amount, print_json, say, tell


@examples(
    "npu-rl runs rm quickstart-2",
    "npu-rl runs rm /data/runs/r1-zero",
    "npu-rl runs rm quickstart --json",
)
def remove(run: Run, workspace: Workspace = None, json: Json = False) -> None:
    """Remove a run, checkpoints included.

    Only files that its record lists are removed. Files that you put into its folder stay there, and are named; folders
    that the trainer writes, such as workers/ or a checkpoint's actor/, go with all that is in them. A run is kept if it
    is still running, or may be on another host, has left processes behind, or has a checkpoint that another run beside
    it names.
    """
    from npu_rl.training.record.remove_run import remove_run

    removed = remove_run(find_record(run, workspace))
    if json:
        print_json(removed.to_json())
        return
    say(f"Removed {removed.folder}: {amount(removed.size)}")
    for path in removed.kept:
        tell(f"Kept, since it is not of the record: {path}")
