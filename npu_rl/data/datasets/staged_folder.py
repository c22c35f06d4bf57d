"""Creation of a folder that appears complete or not at all, and never replaces a foreign one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import hash_file, read_json
from npu_rl.common.disk import alive, disk_errors, remove_tree, take_over
from npu_rl.common.errors import UsageError

_PARTIAL, _REPLACED, _LOCK = ".partial", ".replaced", ".lock"


@contextlib.contextmanager
def staged_folder(target: Path, mark: str, *, again: bool) -> Iterator[Path]:
    """Yield a new folder beside `target`, which takes its name when the block ends without an error.

    Leftovers of killed processes are removed.

    Args:
        mark: Name of a JSON file that every folder made like this has; its `files` are the others by name.
        again: Whether to replace a folder with the mark, if it has only the files that the mark names, unchanged.

    Raises:
        UsageError: If the folder has other files, or files at all without `again`.
        HostError: For errors of the disk.
    """
    _require_free(target, mark, again)
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(target, mark)
    staging = target.parent / f".{target.name}.{os.urandom(6).hex()}{_PARTIAL}"
    with disk_errors(target.parent), alive(staging.with_suffix(_LOCK)):
        staging.mkdir()
        try:
            yield staging
            _require_free(target, mark, again)  # another process may have made it meanwhile
            _take_place(staging, target, mark)
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
    listed = _listed(target, mark) if mark in names else {}  # of which only what is there becomes a path
    own = {mark, *listed} if mark in names else set()
    foreign = sorted(name for name in names if name not in own or not _is_regular(target / name))
    if foreign:
        raise UsageError(
            "The output folder has files of something else",
            where=str(target),
            why=", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if foreign[5:] else ""),
            hint="Choose a new or an empty folder. Nothing was changed.",
        )
    if not again:
        raise UsageError(
            "The output folder is already prepared",
            where=str(target),
            why=f"It has a {mark}, which records its input.",
            hint="Choose another folder, or pass --overwrite to replace it.",
        )
    with disk_errors(target):
        changed = [name for name in sorted(set(names) & set(listed)) if _differs(target / name, listed[name])]
    if changed:
        raise UsageError(
            "The output folder has files that were changed after they were prepared",
            where=str(target),
            why=f"{', '.join(changed)}: the SHA-256 differs from the one in {mark}.",
            hint="Choose another folder, or move these files away. Nothing was changed.",
        )


def _differs(path: Path, facts: Any) -> bool:
    wanted = facts.get("sha256") if isinstance(facts, dict) else None
    return not isinstance(wanted, str) or hash_file(path) != wanted


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _listed(folder: Path, mark: str) -> dict[str, Any]:
    """Return the facts of the files that the mark lists, by name; empty for a damaged mark."""
    try:
        files = read_json(folder / mark)["files"]
        return {name: facts for name, facts in files.items() if isinstance(name, str)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remove_own(folder: Path, mark: str) -> None:
    """Remove a replaced folder, unless files were added to it meanwhile: those are kept, and the folder with them."""
    with contextlib.suppress(OSError):
        there = {path.name for path in folder.iterdir() if not folder.is_symlink()}
        own = there & {mark, *_listed(folder, mark)}
        for name in [*sorted(own - {mark}), *sorted(own & {mark})]:  # the mark last: it is the list
            (folder / name).unlink()
        folder.rmdir()


def _take_place(staging: Path, target: Path, mark: str) -> None:
    """Rename the folder into place; a folder to replace is moved aside first, and moved back if that fails."""
    target = Path(os.path.realpath(target))
    if not target.exists() or not os.listdir(target):  # noqa: PTH208
        staging.rename(target)
        return
    aside = staging.with_suffix(_REPLACED)
    target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        aside.rename(target)
        raise
    _remove_own(aside, mark)


def _remove_left_over(target: Path, mark: str) -> None:
    """Remove leftovers of killed processes; a folder that was being replaced gets its name back."""
    form = re.compile(re.escape(f".{target.name}.") + "[0-9a-f]{12}" + re.escape(_LOCK))
    for lock in [path for path in target.parent.iterdir() if form.fullmatch(path.name)]:
        handle = take_over(lock)
        if handle is None:
            continue
        try:
            aside = lock.with_suffix(_REPLACED)
            if aside.is_dir() and not target.exists():
                with disk_errors(target):
                    aside.rename(target)
            _remove_own(aside, mark)
            remove_tree(lock.with_suffix(_PARTIAL))
            with contextlib.suppress(OSError):
                lock.unlink()
        finally:
            os.close(handle)
