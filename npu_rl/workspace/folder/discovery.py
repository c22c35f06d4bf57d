"""Discovery of a command's workspace: the named one, else the closest trusted one.

A workspace determines what a command reads, prints and, with `train`, runs. One in a parent folder such as /tmp may be
anyone's, so a workspace that was not named has to belong to this user, as with git's safe.directory.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import HostError, UsageError, WorkspaceError
from npu_rl.common.user_path import user_path
from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME, WorkspacePaths


def open_workspace(
    named: Path | None, notify: Callable[[str], None], manifest: str = "NAME"
) -> WorkspacePaths:
    """Return the workspace found by `find_workspace`, after waiting for a running setup.

    Args:
        manifest: The manifest to set up where there is no workspace, if the command knows it.

    Raises:
        WorkspaceError: If there is none, or if its setup was interrupted.
        HostError: If it is another user's.
    """
    paths = open_workspace_if_any(named, notify)
    if paths is None:
        known = "" if manifest != "NAME" else " (npu-rl manifests list)"
        raise WorkspaceError(
            "No workspace found here or in a parent folder",
            where=str(Path.cwd()),
            hint=f"Set one up: npu-rl setup --manifest {shlex.quote(manifest)}{known}\nOr pass one: --workspace DIR",
        )
    return paths


def open_workspace_if_any(named: Path | None, notify: Callable[[str], None]) -> WorkspacePaths | None:
    """Return the workspace like `open_workspace`; None if none is named or found."""
    paths = find_workspace(named)
    if paths is not None and paths.is_swapping:
        from npu_rl.workspace.folder.workspace_lock import settled

        with settled(paths, notify):
            pass
    return paths


def find_workspace(named: Path | None) -> WorkspacePaths | None:
    """Return the named workspace, else the closest one at or above the current folder, else ./npu-rl-workspace.

    None if none is named and none is found.

    Raises:
        WorkspaceError: If the named folder is not a workspace.
        HostError: If the found one is another user's and `safe_folders` does not list it.
    """
    if named is not None:
        paths = WorkspacePaths(named_folder(named))
        with disk_errors(paths.root):
            if _is_workspace(paths):
                return paths
        raise WorkspaceError(
            f"{paths.root} is not a workspace",
            why=f"It has no {paths.receipt.relative_to(paths.root)}.",
            hint=f"Set one up: npu-rl setup --manifest NAME --workspace {shlex.quote(str(paths.root))}",
        )
    here = Path.cwd()
    for folder in (here, *here.parents, here / DEFAULT_NAME):
        paths = WorkspacePaths(folder)
        # One whose `.npu-rl` this user can't access is skipped.
        if os.access(paths.hidden, os.X_OK) and _is_workspace(paths):
            require_own_workspace(paths)
            return paths
    return None


def named_folder(named: Path) -> Path:
    """Return the absolute path of a folder on the command line, without `..`, for setup moves the folders on its way.

    Raises UsageError for the home of an unknown user.
    """
    folder = user_path(named, "--workspace").absolute()
    return Path(os.path.realpath(folder)) if ".." in folder.parts else folder


def require_own_workspace(paths: WorkspacePaths) -> None:
    """Raise HostError for a workspace of another user that was not named and that `safe_folders` does not list."""
    from npu_rl.common.folder_owner import require_own

    hint = f"Pass it, if you trust it: --workspace {shlex.quote(os.path.realpath(paths.root))}"
    require_own("workspace", paths.root, paths.hidden, hint=hint)


def folder_to_set_up(named: Path | None) -> WorkspacePaths:
    """Return the named workspace, else ./npu-rl-workspace.

    Raises:
        UsageError: If that would be in another workspace, such as in its code.
        HostError: If it is another user's.
    """
    paths = WorkspacePaths(named_folder(named or Path(DEFAULT_NAME)))
    if named is not None:
        return paths
    try:
        around = find_workspace(None)
    except HostError:  # one of another user, which is not ours to protect
        around = None
    if around is not None and around.root != paths.root:
        raise UsageError(
            f"This folder is in the workspace {around.root}",
            why=f"Without --workspace, setup would make another one in it: ./{DEFAULT_NAME}",
            hint=f"For that workspace, leave its folder first: cd {shlex.quote(str(around.root.parent))}\n"
            f"or name it: --workspace {shlex.quote(str(around.root))}",
        )
    require_own_workspace(paths)
    return paths


def _is_workspace(paths: WorkspacePaths) -> bool:
    return paths.is_workspace or paths.is_swapping
