"""Validation of a workspace's path, which goes into PYTHONPATH, scripts and messages."""

from __future__ import annotations

import os
from pathlib import Path

from npu_rl.common.errors import WorkspaceError


def check_path(root: Path) -> None:
    """Raise WorkspaceError for a path that Python or a shell would misread.

    With a `:` in it, the code would verify, but Python would not import it.
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
