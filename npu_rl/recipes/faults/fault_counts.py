"""The line on known faults that `setup`, `plan` and `train` print, cached while tree and catalogue are unchanged.

On a workspace of deepseek-v3-cann the imports, the catalogue and the verdicts take 9 ms of CPU time (14 to 20 where
Python may write no byte code); `stat` of the cited files and the cached line take one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.byte_code import NOWHERE, place
from npu_rl.common.disk import write_atomically

_ROOM = Path(__file__).resolve().parent
_SETTLED_NS = 2 * 10**9  # a file changed as long ago cannot change again under the same time of change
_LARGEST = 1 << 20


def faults_line(code: Path, off: Collection[str] = (), strategy: str | None = "") -> str:
    """Return the line on the known faults in a tree; empty if the tree can't be read.

    Args:
        code: The code folder.
        off: The adaptations that are switched off.
        strategy: The recipe's `actor.strategy`; "" without a recipe, None if it is unknown.
    """
    words = [os.path.realpath(code), "any" if strategy is None else f"={strategy}", *sorted(off)]
    key = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape"))
    folder = place("faults")
    file = None if folder == NOWHERE else Path(folder, f"{key.hexdigest()[:32]}.json")
    catalogue, _ = _state(_catalogue())
    kept = _kept(file)
    if kept.get("catalogue") == catalogue and kept.get("tree") == _state(_paths(code, kept))[0]:
        return str(kept["line"])
    return _judge(code, off, strategy, file, catalogue)


def _judge(code: Path, off: Collection[str], strategy: str | None, file: Path | None, catalogue: str) -> str:
    from npu_rl.common.errors import NpuRlError
    from npu_rl.recipes.faults.fault import known_faults
    from npu_rl.recipes.faults.verdict import count_line, judge_tree

    try:
        faults = known_faults()
    except NpuRlError:
        return ""
    files = sorted({one for fault in faults for one in fault.files})
    tree, newest = _state([str(code / one) for one in files])
    line = count_line(judge_tree(code, faults, off), strategy)
    if file is not None and time.time_ns() - newest > _SETTLED_NS:
        text = json.dumps({"catalogue": catalogue, "tree": tree, "files": files, "line": line})
        try:
            write_atomically(file, text.encode())
        except OSError:
            pass  # the next command reads the tree again
    return line


def _kept(file: Path | None) -> dict[str, Any]:
    try:
        kept = read_json(file, _LARGEST) if file is not None else None
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) and isinstance(kept.get("line"), str) else {}


def _paths(code: Path, kept: dict[str, Any]) -> list[str]:
    files = kept.get("files")
    return [f"{code}/{one}" for one in files] if isinstance(files, list) else []


def _catalogue() -> list[str]:
    """Return the files outside of the tree that the verdicts depend on."""
    return [str(_ROOM / name) for name in ("fault.py", "verdict.py", "catalogue.json")]


def _state(paths: Iterable[str]) -> tuple[str, int]:
    """Return a digest of the files' `stat` results, and the latest change time in ns. Files may be missing."""
    rows, newest = [], 0
    for path in paths:
        try:
            status = os.stat(path)
            newest = max(newest, status.st_ctime_ns)
            rows.append(f"{path}\0{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}")
        except OSError:
            rows.append(f"{path}\0")
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()[:32], newest
