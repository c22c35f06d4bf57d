"""Folders that npu-rl makes once beside the runs, and uses again only where it made each of their bytes.

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
    """Return the first of `base`, `base`-2, `base`-3, ... that is missing, or is as this user has made it."""
    for number in itertools.count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not os.path.lexists(folder) or is_as_made(folder):
            return folder
    raise AssertionError("unreachable")


def is_as_made(folder: Path) -> bool:
    """Return whether a folder holds exactly the files that `keep_made` was called for."""
    kept = kept_facts(_KIND, _SUBJECT, folder)
    if kept is None or folder.is_symlink():
        return False
    try:
        # Sizes first: a stranger's file may be endless to read.
        return _sizes(folder) == kept.get("sizes") and _hashes(folder) == kept.get("hashes")
    except OSError:
        return False


def keep_made(staged: Path, folder: Path) -> None:
    """Keep the hashes of a finished folder that is to be renamed to `folder`; without a state folder nothing is."""
    with contextlib.suppress(OSError, ValueError):
        keep_facts(_KIND, _SUBJECT, folder, {"sizes": _sizes(staged), "hashes": _hashes(staged)})


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file below a folder; of a link its own."""
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
