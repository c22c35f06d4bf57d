"""The bundled manifest of a workspace, for commands whose manifest argument can be left out in a workspace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.workspace.folder.discovery import open_workspace
from npu_rl.workspace.folder.receipt import bundled_manifest, read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def workspace_manifest(named: Path | None, notify: Callable[[str], None]) -> tuple[str, WorkspacePaths]:
    """Return the name of the bundled manifest that a workspace was set up from, and the workspace.

    Args:
        named: The workspace's folder; None for the closest one.

    Raises:
        UsageError: If it was set up from another manifest, whose path a receipt can't be trusted with.
        WorkspaceError: If there is no workspace.
    """
    paths = open_workspace(named, notify)
    name = bundled_manifest(read_receipt(paths).setup)
    if name is None:
        raise UsageError(
            "This workspace was set up from your own manifest",
            where=str(paths.root),
            hint="Name it: --manifest PATH",
        )
    return name, paths
