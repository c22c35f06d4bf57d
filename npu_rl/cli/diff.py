"""npu-rl diff"""

from __future__ import annotations

import sys
from pathlib import Path

from npu_rl.cli.show import say_text, tell
from npu_rl.verification.component_diff import component_changes
from npu_rl.verification.diff import local_changes
from npu_rl.workspace.discovery import open_workspace


def run(workspace: Path | None, component: str | None) -> None:
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
