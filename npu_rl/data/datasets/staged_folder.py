"""Creation of a folder that appears complete or not at all, and never replaces a foreign one."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from npu_rl.common.disk import alive, disk_errors, remove_tree, take_over
from npu_rl.common.errors import UsageError

_PARTIAL, _LOCK = ".partial", ".lock"


@contextlib.contextmanager
def staged_folder(
    target: Path, mark: str, *, again: bool, notify: Callable[[str], None] = lambda _: None
) -> Iterator[Path]:
    """Yield a new folder beside `target`, which takes its name when the block ends without an error.

    Leftovers of killed processes are removed.

    Args:
        mark: Name of a file that every folder made like this has.
        again: Whether a folder with the mark may be moved aside, to the first free name in `NAME.old-N`.
        notify: Called with a line on the folder that was moved.

    Raises:
        UsageError: If there is a file, or a folder with files that is not to be moved aside.
        HostError: For errors of the disk.
    """
    _require_free(target, mark, again)
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(target)
        staging = target.parent / f".{target.name}.{os.urandom(6).hex()}{_PARTIAL}"
        with alive(staging.with_suffix(_LOCK)):
            try:
                staging.mkdir()
                yield staging
                _require_free(target, mark, again)  # another process may have made it meanwhile
                place = Path(os.path.realpath(target))
                if place.is_dir() and any(place.iterdir()):
                    names = (place.with_name(f"{place.name}.old-{number}") for number in itertools.count(1))
                    old = next(path for path in names if not os.path.lexists(path))
                    place.rename(old)
                    notify(f"the former {place} is {old} now")
                staging.rename(place)
            finally:
                remove_tree(staging)


def _require_free(target: Path, mark: str, again: bool) -> None:
    def refused(what: str, hint: str) -> UsageError:
        return UsageError(what, where=str(target), hint=hint)

    with disk_errors(target):
        if target.is_symlink() and not target.exists():
            raise refused("The output folder is a link that leads nowhere", "Choose another.")
        if target.exists() and not target.is_dir():
            raise refused("The output is a file, not a folder", "Choose another folder.")
        if not target.is_dir() or not any(target.iterdir()):
            return
        if not (target / mark).is_file():
            hint = "Choose a new or an empty folder. Nothing was changed."
            raise refused(f"The output folder has files of something else: it has no {mark}", hint)
    if not again:
        hint = "Choose another folder, or pass --overwrite: it moves this one aside."
        raise refused("The output folder is already prepared", hint)


def _remove_left_over(target: Path) -> None:
    form = re.compile(re.escape(f".{target.name}.") + "[0-9a-f]{12}" + re.escape(_LOCK))
    for lock in [path for path in target.parent.iterdir() if form.fullmatch(path.name)]:
        handle = take_over(lock)
        if handle is not None:
            remove_tree(lock.with_suffix(_PARTIAL))
            lock.unlink(missing_ok=True)
            os.close(handle)
