"""The command `npu-rl diff`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Workspace
from npu_rl.cli.show import say_text, tell


@examples(
    "npu-rl diff",
    "npu-rl diff > my-changes.patch",
    "npu-rl diff --component verl > 0001-my-fix.patch   # for its `patches:`",
)
def diff(
    workspace: Workspace = None,
    component: Annotated[
        str | None,
        typer.Option(
            "--component",
            metavar="NAME",
            help="Print only the changes of NAME, in its own paths: a patch for its `patches:`.",
        ),
    ] = None,
) -> None:
    """Show local changes as a patch.

    They are compared with the locked tree. The output is empty if nothing has changed.
    """
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.verification.component_diff import component_changes
    from npu_rl.workspace.verification.diff import local_changes

    layout = open_workspace(workspace, tell)
    # A patch is bytes and stays them in a file or pipe; a terminal would obey them.
    write = _shown if sys.stdout.isatty() else sys.stdout.buffer.write
    chunks = (
        local_changes(layout, tell) if component is None else [component_changes(layout, component, tell)]
    )
    for chunk in chunks:
        write(chunk)
    sys.stdout.flush()


def _shown(chunk: bytes) -> int:
    say_text(chunk.decode("utf-8", "backslashreplace"))
    return len(chunk)
