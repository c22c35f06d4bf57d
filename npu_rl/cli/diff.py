"""npu-rl diff"""

from __future__ import annotations

import sys
from pathlib import Path

from npu_rl.cli.show import tell
from npu_rl.workspace.diff import local_changes
from npu_rl.workspace.layout import find_workspace
from npu_rl.workspace.recover import recover


def run(workspace: Path | None) -> None:
    layout = find_workspace(workspace)
    recover(layout, tell)
    for chunk in local_changes(layout, tell):
        sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
