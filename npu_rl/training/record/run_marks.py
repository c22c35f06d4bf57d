"""Marks that a run's processes inherit: its id, and a digest of its folder's place, which a copy of the record lacks.

On a network file system a folder's device number differs between hosts, and after each mount, so a node computes
another mark than the host of `train`. Its inode does not: an attempt records both.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from npu_rl.common.bounded import read_json
from npu_rl.training.record.run_errors import removal_noticed

_MARK = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")


def mark_of(run_id: str, folder: Path) -> str:
    """Return the mark that processes started for a run's folder get here."""
    return _mark_and_inode(run_id, folder)[0]


def recorded_mark(run_id: str, folder: Path) -> dict[str, object]:
    """Return a run's mark and its folder's inode, for the command.json of an attempt."""
    mark, inode = _mark_and_inode(run_id, folder)
    return {"mark": mark, "inode": inode}


def marks_of(run_id: str, folder: Path, attempts: Iterable[Path]) -> list[str]:
    """Return the marks of a run's processes: the folder's own first, then those recorded through another mount of it.

    Args:
        run_id: The run's.
        folder: Its folder.
        attempts: The folders of its attempts.
    """
    mark, inode = _mark_and_inode(run_id, folder)
    return list(dict.fromkeys([mark, *_recorded(run_id, inode, attempts)]))


def _mark_and_inode(run_id: str, folder: Path) -> tuple[str, int]:
    with removal_noticed(folder):
        place = folder.stat()
    digest = hashlib.sha256(f"{place.st_dev}:{place.st_ino}".encode()).hexdigest()
    return f"{run_id}-{digest[:16]}", place.st_ino


def _recorded(run_id: str, inode: int, attempts: Iterable[Path]) -> Iterator[str]:
    for attempt in attempts:
        try:
            begun = read_json(attempt / "command.json")
            mark, known = begun["mark"], begun["inode"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if (
            known == inode
            and isinstance(mark, str)
            and _MARK.fullmatch(mark)
            and mark.startswith(f"{run_id}-")
        ):
            yield mark
