"""Replacement of the old workspace by a new one, with renames and a journal for recovery.

Until the journal is written, the old workspace remains; from then on the next setup completes the renames, whatever
killed the last one. What exists shows which renames are done.

No move overwrites a file, and a link is moved or removed itself, not what it leads to.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path

from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.disk import is_folder, move_new, remove_tree, write_atomically
from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder.workspace_paths import MOVED, WorkspacePaths

# Moves what is to be saved from the old parts (the first folder) to the second, which may not exist yet.
Keep = Callable[[Path, Path], None]

_NAME = re.compile(r"(staging|old)-[0-9a-f]{12}")
_KEPT_NAME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}(\.[0-9]+)?")
# What a killed command may leave in `.npu-rl`: its folders, and partial files.
_LEFTOVER = re.compile(r"(staging|old|build)-[0-9a-f]{12}|\.clock-[0-9]+-[0-9]+|\.[a-z]+\.json\.[0-9a-f]{12}")
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

    def write(self, paths: WorkspacePaths, *, moved: bool = False) -> None:
        """Write the journal."""
        body = {
            "staging": self.staging.name,
            "old": self.old.name,
            "in": sorted(self.incoming),
            "kept": self.kept.name,
            "moved": moved,
        }
        write_atomically(paths.journal, json.dumps(body).encode(), sync=not moved)


def read_journal(paths: WorkspacePaths) -> Journal | None:
    """Read the journal of an unfinished swap. Raises WorkspaceError if it is damaged."""
    try:
        body = parse_json(read_file(paths.journal, _MAXIMUM_SIZE))
        names = (body["staging"], body["old"])
        incoming = frozenset(body["in"])
        ours = all(_NAME.fullmatch(name) for name in names) and _KEPT_NAME.fullmatch(body["kept"])
        if not ours or not incoming <= set(MOVED):
            raise ValueError("it names paths that setup never uses")  # they would be removed
        staging, old = (paths.hidden / name for name in names)
        return Journal(staging, old, incoming, paths.kept / body["kept"], bool(body["moved"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkspaceError(
            "The journal of an interrupted setup can't be read",
            where=str(paths.journal),
            why=str(error),
            hint="Set up another workspace. Your work may be in code, src, .npu-rl/old-* and .npu-rl/kept of this one.",
        ) from error


def swap(paths: WorkspacePaths, staging: Path, keep_edits: Keep) -> Path | None:
    """Move `staging` into place. `keep_edits` is called with the old parts before they are removed.

    Returns the folder of saved local changes, if there are any.

    Raises:
        OSError: If a part can't be moved; then everything is moved back.
    """
    old = staging.with_name(staging.name.replace("staging-", "old-", 1))
    incoming = frozenset(name for name in MOVED if lexists(staging / name))
    journal = Journal(staging, old, incoming, paths.kept / paths.free_kept_name())
    journal.write(paths)
    try:
        _move_all(paths, journal)
    except (OSError, WorkspaceError):
        _move_back(paths, journal)
        for path in (paths.journal, staging, old):
            remove_tree(path)
        raise
    return _clean_up(paths, journal, keep_edits)


def finish(paths: WorkspacePaths, keep_edits: Keep) -> tuple[bool, Path | None]:
    """Complete an interrupted swap. The workspace must be locked.

    Returns whether there was one, and the folder of saved local changes, if there are any.
    """
    journal = read_journal(paths)
    if journal is None:
        return False, None
    if not journal.moved:
        _move_all(paths, journal)
    return True, _clean_up(paths, journal, keep_edits)


def _clean_up(paths: WorkspacePaths, journal: Journal, keep_edits: Keep) -> Path | None:
    if not journal.moved:
        if is_folder(journal.old):
            keep_edits(journal.old, journal.kept)
        journal.write(paths, moved=True)
    for path in (journal.staging, journal.old, paths.journal):
        remove_tree(path)
    return journal.kept if lexists(journal.kept) else None


def _move_all(paths: WorkspacePaths, journal: Journal) -> None:
    """Move the old parts out and the new parts in, except for moves already done."""
    for name in MOVED:
        place, new, old = paths.root / name, journal.staging / name, journal.old / name
        comes = name in journal.incoming
        if lexists(place) and (lexists(new) or not comes):
            if lexists(old):
                _move_new_files_aside(paths, name, journal)
            else:
                move_new(place, old)
        if comes and lexists(new):
            _put(paths, name, new)


def _put(paths: WorkspacePaths, name: str, source: Path) -> None:
    """Move a part to its place.

    In `.npu-rl` another command may have written a cache there after the old one was moved out: `verify` works without
    a lock, and its cache of a receipt that is gone means nothing.
    """
    while True:
        try:
            return move_new(source, paths.root / name)
        except FileExistsError:
            if not name.startswith(_HIDDEN):
                raise
            remove_tree(paths.root / name)


def _move_new_files_aside(paths: WorkspacePaths, name: str, journal: Journal) -> None:
    """Move aside a path that was created during the unfinished swap (in `.npu-rl`, only a cache)."""
    if name.startswith(_HIDDEN):
        remove_tree(paths.root / name)
        return
    names = (journal.kept / f"meanwhile.{count}" / name for count in itertools.count(1))
    move_new(paths.root / name, next(place for place in names if not lexists(place)))


def _move_back(paths: WorkspacePaths, journal: Journal) -> None:
    """Undo the moves in reverse order through the same states, so that a kill during this is recoverable, too."""
    for name in reversed(MOVED):
        place, new, old = paths.root / name, journal.staging / name, journal.old / name
        if name in journal.incoming and not lexists(new):
            move_new(place, new)
        if lexists(old):
            _put(paths, name, old)


def leftovers(paths: WorkspacePaths) -> list[Path]:
    """Return leftovers of killed commands, to be removed if the workspace is locked and has no journal."""
    try:
        return [path for path in paths.hidden.iterdir() if _LEFTOVER.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def sweep(paths: WorkspacePaths) -> None:
    """Remove leftovers of setups that were killed before the journal. The workspace must be locked."""
    if not paths.is_swapping:
        for path in leftovers(paths):
            remove_tree(path)
