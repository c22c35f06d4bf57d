"""Where a workspace may lie: its path goes into PYTHONPATH, into scripts and into messages."""

from __future__ import annotations

import os
from pathlib import Path

from npu_rl.errors import WorkspaceError


def check_path(root: Path) -> None:
    """Raise WorkspaceError for a path that Python or a shell would read as another.

    With a `:` in it the code would verify and could not be imported, or another of that name would be.
    """
    text = os.fspath(root)
    why = None
    if os.pathsep in text:
        why = f"It contains {os.pathsep!r}, which separates the entries of PYTHONPATH: Python would not find the code."
    elif any(ord(c) < 32 or ord(c) == 127 for c in text):
        why = "It contains a control character, such as a line break."
    if why is not None:
        raise WorkspaceError(
            "Invalid workspace path", where=text, why=why, hint="Choose another --workspace."
        )
