"""Recovery from an interrupted setup: `setup` finishes it, every other command reports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder import swap
from npu_rl.workspace.folder.receipt import read_receipt, setup_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.products.built_products import stop_killed_builds


def recover_interrupted(paths: WorkspacePaths, notify: Callable[[str], None]) -> None:
    """Finish an interrupted swap, if there is one, and remove leftovers of killed commands.

    The workspace must be locked. Raises WorkspaceError, HostError.
    """
    stop_killed_builds(paths.hidden)
    interrupted, kept = swap.finish(paths, edit_keeper(paths))
    if interrupted:
        notify("Finished an interrupted setup.")
        if kept:
            notify(f"Local changes were moved to {kept}")
    swap.sweep(paths)


def edit_keeper(paths: WorkspacePaths) -> Callable[[Path, Path], None]:
    """Return a function that moves local changes aside before the old parts are removed.

    These are the changes that --discard covers, and those made during the setup. They are moved after the swap, under
    the journal, so a setup that fails moves nothing.
    """
    from npu_rl.workspace.folder import local_edits

    def keep(old: Path, target: Path) -> None:
        try:
            coming = read_receipt(paths).files
        except WorkspaceError:
            coming = {}  # damaged meanwhile, so no file of the old workspace is known to be in the new one
        local_edits.move_edits(old, local_edits.find_edits(old, coming), target)

    return keep


def interrupted_error(paths: WorkspacePaths) -> WorkspaceError:
    """Return the error that read-only commands raise for a workspace with an unfinished swap."""
    journal = swap.read_journal(paths)
    return WorkspaceError(
        "The setup of this workspace was interrupted",
        where=str(paths.journal),
        why="It may contain parts of the old workspace and of the new one; only `setup` can finish it.",
        hint=f"Finish it: {setup_hint(paths, _setup(paths, journal) if journal else None)}",
    )


def _setup(paths: WorkspacePaths, journal: swap.Journal) -> Mapping[str, Any] | None:
    """Return the `setup` part of the receipt; None without a readable receipt."""
    for home in (journal.staging, paths.root):
        try:
            return read_receipt(WorkspacePaths(home)).setup
        except WorkspaceError:
            continue
    return None
