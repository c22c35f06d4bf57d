"""A complete new workspace takes the place of the old one, by renames that a journal can finish.

Until the journal is written the old workspace stands; from then on every next command carries the
moves to their end, whatever killed the last one. Each move is known to be done or not by what exists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from npu_rl.errors import WorkspaceError
from npu_rl.store import remove_tree, write_atomically
from npu_rl.workspace.layout import MOVED, Layout

Keep = Callable[[Path], None]


def swap(layout: Layout, staging: Path, keep_edits: Keep) -> None:
    """Put `staging` in place. `keep_edits` is shown the old parts before they are removed."""
    old = staging.with_name(staging.name.replace("staging-", "old-", 1))
    incoming = [name for name in MOVED if os.path.lexists(staging / name)]
    journal = {"staging": staging.name, "old": old.name, "in": incoming}
    write_atomically(layout.journal, json.dumps(journal).encode(), sync=True)
    finish(layout, keep_edits)


def finish(layout: Layout, keep_edits: Keep) -> bool:
    """Carry an interrupted swap to its end; whether there was one. Call with the workspace held."""
    try:
        journal = json.loads(layout.journal.read_text())
        staging = layout.hidden / journal["staging"]
        old = layout.hidden / journal["old"]
        incoming = set(journal["in"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise WorkspaceError(
            "The journal can't be read", where=str(layout.journal), why=str(error)
        ) from error
    for name in MOVED:
        _move(staging / name if name in incoming else None, layout.root / name, old / name)
    keep_edits(old)
    layout.journal.unlink()
    remove_tree(staging)
    remove_tree(old)
    return True


def _move(new: Path | None, place: Path, old: Path) -> None:
    """Old part out, new part in (None: there is no new one). What was done already is left."""
    if new is None:
        if os.path.lexists(place) and not os.path.lexists(old):
            old.parent.mkdir(parents=True, exist_ok=True)
            place.rename(old)
    elif os.path.lexists(new):
        if os.path.lexists(place):
            old.parent.mkdir(parents=True, exist_ok=True)
            place.rename(old)
        place.parent.mkdir(parents=True, exist_ok=True)
        new.rename(place)


def sweep(layout: Layout) -> None:
    """Remove what a killed setup left before its journal was written. Call with the workspace held."""
    if layout.journal.exists():
        return
    for path in [
        *layout.hidden.glob("staging-*"),
        *layout.hidden.glob("old-*"),
        *layout.hidden.glob(".clock-*"),
    ]:
        remove_tree(path)
    for path in layout.hidden.glob(".*.json.*"):
        path.unlink(missing_ok=True)
