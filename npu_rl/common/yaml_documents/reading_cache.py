"""Cache of parsed configuration files for the next command.

It is stored beside byte code, in a folder that only its user can write to; without such a folder nothing is kept. It is
valid as long as the code that reads the files, npu-rl's own and the installed packages, does not change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.byte_code import NOWHERE, place
from npu_rl.common.disk import remove_tree, write_atomically

_ROOMS = ("common/yaml_documents", "stack/manifest", "stack/lock")
_MOST = 64  # files
_LARGEST = 8 * 1024 * 1024
_OWN = re.compile(r"[a-z]+-[0-9a-f]+\.json")


def recall(kind: str, key: str) -> Any:
    """Return the kept JSON values, or None if they are missing or damaged."""
    path = _file(kind, key)
    try:
        kept = read_json(path, _LARGEST) if path else None
    except (OSError, ValueError):
        return None
    return kept.get("value") if isinstance(kept, dict) and kept.get("readers") == _readers() else None


def keep(kind: str, key: str, value: Any) -> None:
    """Keep JSON values; errors are ignored.

    Args:
        key: Hexadecimal digits.
    """
    path = _file(kind, key)
    if path is None:
        return
    with contextlib.suppress(OSError, ValueError):
        write_atomically(path, json.dumps({"readers": _readers(), "value": value}).encode())
        own = [one for one in path.parent.iterdir() if _OWN.fullmatch(one.name)]
        for old in sorted(own, key=lambda one: one.stat().st_mtime_ns, reverse=True)[_MOST:]:
            remove_tree(old)


def _file(kind: str, key: str) -> Path | None:
    folder = place("reading")
    return None if folder == NOWHERE else Path(folder, f"{kind}-{key}.json")


@cache
def _readers() -> str:
    """Identify the code that reads the files. The folder of a package changes with each one that is installed there."""
    own = Path(__file__).parents[2]
    files = [entry.path for room in _ROOMS for entry in os.scandir(own / room) if entry.name.endswith(".py")]
    rows = []
    for path in (*sorted(files), *sys.path):
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            rows.append(f"{path}\0{status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()
