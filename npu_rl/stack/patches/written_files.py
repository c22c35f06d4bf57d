"""Writing of an export's files, all or none: after an error, the old content is restored."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.disk import disk_errors, remove_tree, write_named

LARGEST = 16 * 1024 * 1024


def differing(files: Mapping[Path, bytes | None]) -> dict[Path, bytes | None]:
    """Return the files that would change: new content, or None for one to remove."""
    return {path: data for path, data in files.items() if read_if_file(path, LARGEST) != data}


def write_files(files: Mapping[Path, bytes | None]) -> None:
    """Write files in order, and remove those without content. Raises HostError after restoring the old content."""
    old = {path: read_if_file(path, LARGEST) for path in files}
    made = _make_folders(files)
    done: list[Path] = []
    try:
        for path, data in files.items():
            done.append(path)
            _put(path, data)
    except BaseException:
        for path in reversed(done):
            with contextlib.suppress(Exception):
                _put(path, old[path])
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                _remove_empty(folder)
        raise


def _put(path: Path, data: bytes | None) -> None:
    if data is None:
        remove_tree(path)
    else:
        write_named(path, data)


def _make_folders(files: Mapping[Path, bytes | None]) -> list[Path]:
    """Make the folders of new files; return those that were missing, the outermost first."""
    made: list[Path] = []
    for folder in dict.fromkeys(path.parent for path in files):
        missing = [above for above in (folder, *folder.parents) if not above.exists()]
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        made += reversed(missing)
    return made


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        remove_tree(folder)
