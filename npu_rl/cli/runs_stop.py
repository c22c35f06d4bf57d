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
    "npu-rl runs stop /data/runs/r1-zero",
)
def stop(
    run: Run,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0.0, max=3600.0, metavar="N", help="Seconds it has to end in order."),
    ] = 90.0,
    workspace: Workspace = None,
    json: Json = False,
) -> None:  # fmt: skip
    """End a run from another shell.

    The npu-rl that started it ends it as Ctrl-C does. If it does not do so in time, it is killed, and what it started
    ends with it. A run that was begun on another host is stopped there.
    """
    from npu_rl.training.record.stop_run import stop_run

    if_interrupted(GOES_ON)

    ended = stop_run(find_record(run, workspace), grace, tell)
    if json:
        print_json(ended.to_json())
    elif ended.how == "ended before":
        say(f"{ended.run}: not running on this host ({ended.state})")
    else:
        say(f"{ended.run}: ended {ended.how}; it is {ended.state}")
