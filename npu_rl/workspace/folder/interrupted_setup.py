"""Recovery from an interrupted setup: `setup` finishes it, every other command reports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder import swap
from npu_rl.workspace.folder.layout import Layout
from npu_rl.workspace.folder.receipt import read_receipt, setup_hint


def recover_interrupted(layout: Layout, notify: Callable[[str], None]) -> None:
    """Finish an interrupted swap, if there is one, and remove leftovers of killed commands.

    The workspace must be locked. Raises WorkspaceError, HostError.
    """
    interrupted, kept = swap.finish(layout, edit_keeper(layout))
    if interrupted:
        notify("Finished an interrupted setup.")
        if kept:
            notify(f"Local changes were moved to {kept}")
    swap.sweep(layout)


def edit_keeper(layout: Layout) -> Callable[[Path, Path], None]:
    """Return a function that moves local changes aside before the old parts are removed.

    These are the changes that --discard covers, and those made during the setup. They are moved after the swap, under
    the journal, so a setup that fails moves nothing.
    """
    from npu_rl.workspace.folder import local_edits

    def keep(old: Path, target: Path) -> None:
        try:
            coming = read_receipt(layout).files
        except WorkspaceError:
            coming = {}  # damaged meanwhile, so no file of the old workspace is known to be in the new one
        local_edits.move_edits(layout.inside, old, local_edits.find_edits(old, coming), target)

    return keep


def interrupted_error(layout: Layout) -> WorkspaceError:
    """Return the error of a read-only command for a workspace whose swap is not finished."""
    journal = swap.read_journal(layout)
    return WorkspaceError(
        "The setup of this workspace was interrupted",
        where=str(layout.journal),
        why="It may contain parts of the old workspace and of the new one; only `setup` can finish it.",
        hint=f"Finish it: {setup_hint(layout, _setup(layout, journal) if journal else None)}",
    )


def _setup(layout: Layout, journal: swap.Journal) -> Mapping[str, Any] | None:
    """Return what the receipt of the interrupted setup has of it; None if there is none that can be read."""
    for home in (journal.staging, layout.root):
        try:
            return read_receipt(Layout(home)).setup
        except WorkspaceError:
            continue
    return None
