"""Replacing the old workspace by a new one, with renames that a journal makes recoverable.

Until the journal is written, the old workspace remains; from then on the next setup completes the renames, whatever
killed the last one. What exists shows which renames are done.

All changes go through `Layout.inside`: the workspace and its journal are untrusted, and no link may redirect a rename
or a removal.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder.layout import MOVED, Layout

# Moves what is to be saved from the old parts (the first folder) to the second, which may not exist yet.
Keep = Callable[[Path, Path], None]

_NAME = re.compile(r"(staging|old)-[0-9a-f]{12}")
_KEPT_NAME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}(\.[0-9]+)?")
# What a killed command may leave in `.npu-rl`: its folders, and partial files.
_LEFTOVER = re.compile(r"(staging|old)-[0-9a-f]{12}|\.clock-[0-9]+-[0-9]+|\.[a-z]+\.json\.[0-9a-f]{12}")
_MAXIMUM_SIZE = 64 * 1024
_HIDDEN = ".npu-rl/"


@dataclass(frozen=True)
class Journal:
    """State of a swap.

    Attributes:
        incoming: Which of MOVED the new workspace has.
        kept: Target of local changes.
        moved: Whether everything is in place and only leftovers remain.
    """

    staging: Path
    old: Path
    incoming: frozenset[str]
    kept: Path
    moved: bool = False

    def write(self, layout: Layout, *, moved: bool = False) -> None:
        """Write the journal."""
        body = {
            "staging": self.staging.name,
            "old": self.old.name,
            "in": sorted(self.incoming),
            "kept": self.kept.name,
            "moved": moved,
        }
        layout.inside.write(layout.journal, json.dumps(body).encode(), sync=not moved)


def read_journal(layout: Layout) -> Journal | None:
    """Read the journal of an unfinished swap. Raises WorkspaceError if it is damaged."""
    try:
        body = parse_json(layout.inside.read(layout.journal, _MAXIMUM_SIZE))
        names = (body["staging"], body["old"])
        incoming = frozenset(body["in"])
        ours = all(_NAME.fullmatch(name) for name in names) and _KEPT_NAME.fullmatch(body["kept"])
        if not ours or not incoming <= set(MOVED):
            raise ValueError("it names paths that setup never uses")  # they would be removed
        staging, old = (layout.hidden / name for name in names)
        return Journal(staging, old, incoming, layout.kept / body["kept"], bool(body["moved"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkspaceError(
            "The journal of an interrupted setup can't be read",
            where=str(layout.journal),
            why=str(error),
            hint="Set up another workspace. Your work may be in code, src, .npu-rl/old-* and .npu-rl/kept of this one.",
        ) from error


def swap(layout: Layout, staging: Path, keep_edits: Keep) -> Path | None:
    """Put `staging` in place; `keep_edits` is called with the old parts before they are removed.

    Returns the folder of saved local changes, if there are any.

    Raises:
        OSError: If a part can't be moved; then everything is moved back.
    """
    old = staging.with_name(staging.name.replace("staging-", "old-", 1))
    incoming = frozenset(name for name in MOVED if layout.inside.exists(staging / name))
    journal = Journal(staging, old, incoming, layout.kept / layout.free_kept_name())
    journal.write(layout)
    try:
        _move_all(layout, journal)
    except (OSError, WorkspaceError):
        _move_back(layout, journal)
        for path in (layout.journal, staging, old):
            layout.inside.remove(path)
        raise
    return _clean_up(layout, journal, keep_edits)


def finish(layout: Layout, keep_edits: Keep) -> tuple[bool, Path | None]:
    """Complete an interrupted swap. The workspace must be locked.

    Returns whether there was one, and the folder of saved local changes, if there are any.
    """
    journal = read_journal(layout)
    if journal is None:
        return False, None
    if not journal.moved:
        _move_all(layout, journal)
    return True, _clean_up(layout, journal, keep_edits)


def _clean_up(layout: Layout, journal: Journal, keep_edits: Keep) -> Path | None:
    inside = layout.inside
    if not journal.moved:
        if inside.is_folder(journal.old):
            keep_edits(journal.old, journal.kept)
        journal.write(layout, moved=True)
    for path in (journal.staging, journal.old, layout.journal):
        inside.remove(path)
    return journal.kept if inside.exists(journal.kept) else None


def _move_all(layout: Layout, journal: Journal) -> None:
    """Move the old parts out and the new parts in, except for moves already done."""
    inside = layout.inside
    for name in MOVED:
        place, new, old = layout.root / name, journal.staging / name, journal.old / name
        comes = name in journal.incoming
        if inside.exists(place) and (inside.exists(new) or not comes):
            if inside.exists(old):
                _move_new_files_aside(layout, name, journal)
            else:
                inside.move(place, old)
        if comes and inside.exists(new):
            _put(layout, name, new)


def _put(layout: Layout, name: str, source: Path) -> None:
    """Move a part to its place.

    In `.npu-rl` another command may have written a cache there after the old one was moved out: `verify` works without
    a lock, and its cache of a receipt that is gone means nothing.
    """
    while True:
        try:
            return layout.inside.move(source, layout.root / name)
        except FileExistsError:
            if not name.startswith(_HIDDEN):
                raise
            layout.inside.remove(layout.root / name)


def _move_new_files_aside(layout: Layout, name: str, journal: Journal) -> None:
    """Move aside a path that was created while the swap was unfinished; in `.npu-rl` it is only a cache."""
    if name.startswith(_HIDDEN):
        layout.inside.remove(layout.root / name)
        return
    names = (journal.kept / f"meanwhile.{count}" / name for count in itertools.count(1))
    layout.inside.move(layout.root / name, next(place for place in names if not layout.inside.exists(place)))


def _move_back(layout: Layout, journal: Journal) -> None:
    """Undo the moves in reverse order, through the same states, so that a kill is recovered as usual."""
    inside = layout.inside
    for name in reversed(MOVED):
        place, new, old = layout.root / name, journal.staging / name, journal.old / name
        if name in journal.incoming and not inside.exists(new):
            inside.move(place, new)
        if inside.exists(old):
            _put(layout, name, old)


def leftovers(layout: Layout) -> list[Path]:
    """Return leftovers of killed commands, to be removed if the workspace is locked and has no journal."""
    try:
        return [path for path in layout.hidden.iterdir() if _LEFTOVER.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def sweep(layout: Layout) -> None:
    """Remove leftovers of setups that were killed before the journal. The workspace must be locked."""
    if not layout.is_swapping:
        for path in leftovers(layout):
            layout.inside.remove(path)
