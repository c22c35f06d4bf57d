"""Finish what an interrupted setup began: the first thing every command on a workspace does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npu_rl.disk import disk_errors
from npu_rl.workspace.layout import Layout, exclusive


def recover(layout: Layout, tell: Callable[[str], None]) -> None:
    """Finish an interrupted swap, if there is one. Raises WorkspaceError, HostError."""
    if layout.journal.exists():
        with disk_errors(layout.root), exclusive(layout, tell):
            recover_held(layout, tell)


def recover_held(layout: Layout, tell: Callable[[str], None]) -> None:
    """The same, and remove what a killed command left. Call with the workspace held."""
    from npu_rl.workspace import swap

    interrupted, kept = swap.finish(layout, keep_edits(layout))
    if interrupted:
        tell("Finished a setup that was interrupted.")
        if kept:
            tell(f"Local changes were moved to {kept}")
    swap.sweep(layout)


def keep_edits(layout: Layout) -> Callable[[Path, Path], None]:
    """Puts local work aside before the old parts are removed: what --discard was told to, and what came late.

    It happens after the swap, under the journal: a setup that fails has moved nothing.
    """
    from npu_rl.workspace import edits
    from npu_rl.workspace.receipt import read_receipt

    def keep(old: Path, target: Path) -> None:
        edits.keep(old, edits.find_edits(old, read_receipt(layout).files), target)

    return keep
