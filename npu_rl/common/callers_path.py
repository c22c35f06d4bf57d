"""PYTHONPATH of the shell that npu-rl was started from, for the processes that it starts.

CANN's set_env.sh adds its packages to it, and `activate` adds a workspace's code, perhaps of another workspace than
the proven one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_RECEIPT = ".npu-rl/receipt.json"  # marks a workspace
_LAID = ("code", "src")


def callers_path(proven: Iterable[str | Path] = ()) -> list[str]:
    """Return the entries without the code of workspaces, except workspaces that hold a `proven` folder.

    Empty entries are dropped: they mean the working folder.
    """
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not entries:
        return []
    trusted = {root for folder in proven if (root := _workspace_of(folder)) is not None}
    return [entry for entry in entries if _workspace_of(entry) in (None, *trusted)]


def _workspace_of(folder: str | Path) -> str | None:
    """Return the root of the workspace whose laid files include a folder; None for any other folder."""
    real = Path(os.path.realpath(folder))
    for path in (real, *real.parents):
        if path.name in _LAID and (path.parent / _RECEIPT).exists():
            return str(path.parent)
    return None
