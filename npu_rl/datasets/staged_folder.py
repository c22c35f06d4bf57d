"""A folder that appears whole or not at all, and never in place of another's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from npu_rl.disk import alive, disk_errors, remove_tree, take_over
from npu_rl.errors import UsageError


@contextlib.contextmanager
def staged_folder(target: Path, mark: str, *, again: bool) -> Iterator[Path]:
    """Yield a new folder beside `target`, which takes its name when the block ends without an error.

    What an earlier process left there when it was killed is removed.

    Args:
        mark: Name of a file that every folder made like this has.
        again: Whether to replace a folder that has it.

    Raises:
        UsageError: If the folder has other files, or files at all without `again`.
        HostError: For errors of the disk.
    """
    _require_free(target, mark, again)
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(target)
    staging = target.parent / f".{target.name}.{os.urandom(6).hex()}.partial"
    with disk_errors(target.parent), alive(staging.with_suffix(".lock")):
        staging.mkdir()
        try:
            yield staging
            _require_free(target, mark, again)  # another process may have made it meanwhile
            _take_place(staging, target)
        finally:
            remove_tree(staging)


def _require_free(target: Path, mark: str, again: bool) -> None:
    with disk_errors(target):
        try:
            names = os.listdir(target)  # noqa: PTH208 - a link to a folder is followed
        except FileNotFoundError:
            if target.is_symlink():
                raise UsageError(
                    "The output folder is a link that leads nowhere",
                    where=str(target),
                    hint="Choose another.",
                ) from None
            return
        except NotADirectoryError:
            raise UsageError(
                "The output is a file, not a folder", where=str(target), hint="Choose another folder."
            ) from None
    if not names:
        return
    if mark not in names:
        raise UsageError(
            "The output folder has files of something else",
            where=str(target),
            why=", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if names[5:] else ""),
            hint="Choose a new or an empty folder. Nothing was changed.",
        )
    if not again:
        raise UsageError(
            "The output folder is already prepared",
            where=str(target),
            why=f"It has a {mark}, which says from what.",
            hint="Choose another folder, or pass --again to replace it.",
        )


def _take_place(staging: Path, target: Path) -> None:
    """Rename the folder; one that is replaced is put aside first, and put back if that fails."""
    target = Path(os.path.realpath(target))
    if not target.exists() or not os.listdir(target):  # noqa: PTH208
        staging.rename(target)
        return
    aside = staging.with_suffix(".replaced")
    target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        aside.rename(target)
        raise
    remove_tree(aside)


def _remove_left_over(target: Path) -> None:
    """Remove what killed processes left; a folder that was being replaced then gets its name back."""
    for lock in target.parent.glob(f".{target.name}.*.lock"):
        handle = take_over(lock)
        if handle is None:
            continue
        try:
            aside = lock.with_suffix(".replaced")
            if aside.is_dir() and not target.exists():
                with disk_errors(target):
                    aside.rename(target)
            remove_tree(aside)
            remove_tree(lock.with_suffix(".partial"))
            with contextlib.suppress(OSError):
                lock.unlink()
        finally:
            os.close(handle)
