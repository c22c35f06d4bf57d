"""Staging folders of exports, and the removal of those that killed exports have left."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from npu_rl.common.disk import remove_tree, take_over

_LOCK = ".lock"


def staging_folder(target: Path) -> tuple[Path, Path]:
    """Return a new hidden path beside the target, in the same file system, and the path of its lock."""
    staged = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")
    return staged, staged.with_suffix(_LOCK)


def remove_left_over(target: Path) -> None:
    """Remove the staging folders of killed exports to the target. Folders whose lock is held are kept."""
    form = re.compile(re.escape(f".{target.name[:100]}.") + "[0-9a-f]{12}" + re.escape(_LOCK))
    there = target.parent.iterdir() if target.parent.is_dir() else ()
    for lock in [path for path in there if form.fullmatch(path.name)]:
        handle = take_over(lock)
        if handle is None:
            continue
        try:
            remove_tree(lock.with_suffix(".part"))
            with contextlib.suppress(OSError):
                lock.unlink()
        finally:
            os.close(handle)
