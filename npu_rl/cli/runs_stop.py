"""The command `npu-rl runs stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Run, Workspace
from npu_rl.cli.recorded import find_record
from npu_rl.cli.show import GOES_ON, if_interrupted, print_json, say, tell


@examples(
    "npu-rl runs stop quickstart",
    "npu-rl runs stop quickstart --grace 300   # it is saving a checkpoint",
    "npu-rl runs stop /data/runs/r1-zero --ended-on node7   # that host is gone",
)
def stop(
    run: Run,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0.0, max=3600.0, metavar="N", help="Seconds it has to end in order."),
    ] = 90.0,
    ended_on: Annotated[
        str | None,
        typer.Option(
            "--ended-on", metavar="HOST",
            help="The other host where it was begun, which is gone or no longer runs it.",
        ),
    ] = None,
    workspace: Workspace = None,
    json: Json = False,
) -> None:  # fmt: skip
    """End a run from another shell.

    The npu-rl that started it ends it as Ctrl-C does. Processes of the run that remain on this host after that are
    killed, also if that npu-rl is gone. Its record is completed. A run that was begun on another host, and may go on
    there, is left alone.
    """
    from npu_rl.training.record.stop_run import stop_run

    if_interrupted(GOES_ON)

    ended = stop_run(find_record(run, workspace), grace, tell, ended_on=ended_on)
    if json:
        print_json(ended.to_json())
        return
    if ended.how == "ended before":
        say(f"{ended.run}: no process of it is on this host ({ended.outcome or 'nothing was started'})")
        return
    forced = f", {len(ended.killed)} of them by SIGKILL" if ended.killed else ""
    count = len(ended.pids)
    say(
        f"{ended.run}: {ended.how}, {count} process{'' if count == 1 else 'es'} ended{forced}; it is {ended.outcome}"
    )
