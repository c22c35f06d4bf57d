"""Folders that npu-rl creates once beside the runs, and reuses only if their content is unchanged.

Hashes of what was made are kept in the user's state folder, since a workspace's files are not trusted: Megatron loads
`common.pt` of a checkpoint with weights_only=False, which may run code (core 0.12.1:
megatron/core/dist_checkpointing/strategies/common.py:72).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from pathlib import Path

from npu_rl.common.bounded import open_file
from npu_rl.common.user_state import keep_facts, kept_facts

_KIND, _SUBJECT = "made", "folder"
_BLOCK = 1 << 20


def place_for(base: Path) -> Path:
    """Return the first of `base`, `base`-2, `base`-3, ... that is missing, or unchanged since this user made it."""
    for number in itertools.count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not os.path.lexists(folder) or is_as_made(folder):
            return folder
    raise AssertionError("unreachable")


def is_as_made(folder: Path) -> bool:
    """Return whether a folder contains exactly the files recorded by `keep_made`."""
    kept = kept_facts(_KIND, _SUBJECT, folder)
    if kept is None or folder.is_symlink():
        return False
    try:
        # Sizes first: a stranger's file may be endless to read.
        return _sizes(folder) == kept.get("sizes") and _hashes(folder) == kept.get("hashes")
    except OSError:
        return False


def keep_made(staged: Path, folder: Path) -> None:
    """Record the hashes of a finished folder before it is renamed to `folder`. Does nothing without a state folder."""
    with contextlib.suppress(OSError, ValueError):
        keep_facts(_KIND, _SUBJECT, folder, {"sizes": _sizes(staged), "hashes": _hashes(staged)})


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file below a folder. Links aren't followed."""
    return {
        str(path.relative_to(folder)): path.lstat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def _hashes(folder: Path) -> dict[str, str]:
    return {name: _hash(folder / name) for name in _sizes(folder)}


def _hash(path: Path) -> str:
    if path.is_symlink():
        raise OSError(f"{path} is a link")
    found = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
