"""Facts about the user's paths, kept in the user's state folder so that no workspace can forge them.

A file is named after the path that it is about, so a copy of a workspace starts without any.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json
from npu_rl.common.disk import write_atomically
from npu_rl.common.private_log import own_folder, state_folder

_LARGEST = 1024 * 1024  # bytes
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def kept_facts(kind: str, subject: str, path: Path) -> Mapping[str, Any] | None:
    """Return the facts about a path, or None if they can't be read.

    Args:
        kind: The beginning of the file's name.
        subject: The key that holds the path.
    """
    root = os.path.realpath(path)
    try:
        place = _file(kind, subject, root)
        if not place.parent.is_dir():
            return None
        folder = own_folder(place.parent)
        try:
            handle = os.open(place.name, _READ, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            kept = parse_json(file.read(_LARGEST))
        return kept if isinstance(kept, dict) and kept.get(subject) == root else None
    except (OSError, ValueError):
        return None


def keep_facts(kind: str, subject: str, path: Path, facts: Mapping[str, Any]) -> None:
    """Keep facts about a path. Raises OSError, or ValueError for a path with a NUL."""
    root = os.path.realpath(path)
    place = _file(kind, subject, root)
    os.close(own_folder(place.parent))
    write_atomically(place, json.dumps({subject: root, **facts}).encode(), sync=True)


def _file(kind: str, subject: str, root: str) -> Path:
    """Return the file about a path. Raises OSError without a state folder outside of it."""
    state = state_folder()
    if state is None:
        raise FileNotFoundError("HOME and XDG_STATE_HOME are unset")
    if f"{os.path.realpath(state)}/".startswith(f"{root.rstrip('/')}/"):
        raise PermissionError(f"{state} is inside the {subject}")
    return state / f"{kind}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
