"""The user's state folder, with facts about paths: a file is named after its path, so a copy starts without any."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.disk import write_atomically


def state_folder() -> Path | None:
    """Return $XDG_STATE_HOME/npu-rl, else ~/.local/state/npu-rl; None if this user has no home."""
    state, home = (os.environ.get(name, "") for name in ("XDG_STATE_HOME", "HOME"))
    if state.startswith("/"):
        return Path(state, "npu-rl")
    return Path(home, ".local/state/npu-rl") if home.startswith("/") else None


def own_state_folder() -> Path:
    """Return the state folder, created. Raises OSError unless it is this user's: under sudo, HOME may be another's."""
    folder = state_folder()
    if folder is None:
        raise FileNotFoundError("HOME and XDG_STATE_HOME are unset")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.stat().st_uid != os.geteuid():
        raise PermissionError(f"{existing} belongs to another user")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def kept_facts(kind: str, subject: str, path: Path) -> Mapping[str, Any] | None:
    """Return the facts about a path, or None if they can't be read.

    Args:
        kind: The beginning of the file's name.
        subject: The key that holds the path.
    """
    folder, root = state_folder(), os.path.realpath(path)
    if folder is None:
        return None
    try:
        place = folder / _name(kind, root)
        kept = read_json(place) if place.stat().st_uid == os.geteuid() else None
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.get(subject) == root else None


def keep_facts(kind: str, subject: str, path: Path, facts: Mapping[str, Any]) -> None:
    """Keep facts about a path. Raises OSError, or ValueError for a path with a NUL."""
    root = os.path.realpath(path)
    place = own_state_folder() / _name(kind, root)
    write_atomically(place, json.dumps({subject: root, **facts}).encode(), sync=True)


def _name(kind: str, root: str) -> str:
    return f"{kind}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
