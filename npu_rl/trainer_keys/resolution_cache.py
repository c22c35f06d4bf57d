"""Cache of resolved keys and checked values, for the next command on the same files.

Following values through the code takes half of the time of a `plan`. A result holds for a key and a value as long as
neither a file of the folder nor npu-rl itself has changed, so only what was edited is examined again. The cache lies
beside byte code, in a folder that only its user can write; without such a folder nothing is cached.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_rl.bounded import read_json
from npu_rl.byte_code import NOWHERE, place
from npu_rl.disk import write_atomically
from npu_rl.trainer_keys.accepted_values import RefusedValue
from npu_rl.trainer_keys.resolution import KeyResolution
from npu_rl.trainer_keys.value_types import ExpectedType

_MOST = 2048  # answers in a file; the flagship's recipe has 180
_LARGEST = 16 * 1024 * 1024
_SETTLED_NS = 2 * 10**9  # a file changed as long ago cannot change again under the same time of change


class ResolutionCache:
    """The cached results for one code folder and one configuration; `save` adds the new ones."""

    def __init__(self, code: Path, configuration: object) -> None:
        """Read the cache.

        Args:
            code: The code folder.
            configuration: All that a result depends on besides the files, the key and its value.
        """
        self._code = code
        self._configuration = _digest(configuration)
        folder = place(f"{_digest(os.path.realpath(code))}-answers")
        self._file = None if folder == NOWHERE else Path(folder, "answers.json")
        self._state = ("", 0) if self._file is None else _state(code)
        self._known = self._read()
        self._new: dict[str, Any] = {}

    def resolution(self, key: str, value: object) -> KeyResolution | None:
        """Return the cached resolution of a key that has this value, or None."""
        kept: Any = self._known.get(self._name("resolution", key, value))
        try:
            expected = ExpectedType(frozenset(kept["expected"]["types"]), tuple(kept["expected"]["choices"]))
            return KeyResolution(**{**kept, "expected": expected})
        except (TypeError, KeyError):
            return None

    def keep_resolution(self, key: str, value: object, resolution: KeyResolution) -> None:
        """Cache the resolution of a key."""
        plain = asdict(resolution)
        plain["expected"]["types"] = sorted(plain["expected"]["types"])
        self._new[self._name("resolution", key, value)] = plain

    def refusal(self, key: str, value: object) -> tuple[RefusedValue | None] | None:
        """Return the cached refusal of a value in a tuple, (None,) if it was accepted; None if it isn't cached."""
        name = self._name("refusal", key, value)
        if name not in self._known:
            return None
        kept = self._known[name]
        try:
            return (None if kept is None else RefusedValue(**{**kept, "names": tuple(kept["names"])}),)
        except (TypeError, KeyError):
            return None

    def keep_refusal(self, key: str, value: object, refused: RefusedValue | None) -> None:
        """Cache why a value is refused, or that it is accepted (None)."""
        self._new[self._name("refusal", key, value)] = None if refused is None else asdict(refused)

    def save(self) -> None:
        """Write new results, unless a file has just changed, and could change again without a later time."""
        newest = self._state[1]
        if not self._new or self._file is None or time.time_ns() - newest < _SETTLED_NS:
            return
        if _state(self._code) != self._state:
            return
        answers = dict(list({**self._known, **self._new}.items())[-_MOST:])
        try:
            text = json.dumps({"state": self._state[0], "answers": answers})
            write_atomically(self._file, text.encode("utf-8", "surrogateescape"))
        except (OSError, TypeError, ValueError):
            pass  # the next command looks again
        self._new = {}

    def _name(self, kind: str, key: str, value: object) -> str:
        return _digest([self._configuration, kind, key, repr(value)])

    def _read(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            kept = read_json(self._file, _LARGEST)
        except (OSError, ValueError):
            return {}
        answers = kept.get("answers") if isinstance(kept, dict) else None
        return answers if isinstance(answers, dict) and kept.get("state") == self._state[0] else {}


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _state(code: Path) -> tuple[str, int]:
    """Return a digest of the `stat` of each file of the folder and of npu-rl, and the latest time of change in ns."""
    found = sorted([*_stats(str(code)), *_stats(str(Path(__file__).parents[1]))])
    return _digest(found), max((row[3] for row in found), default=0)


def _stats(folder: str) -> Iterator[tuple[str, int, int, int, int]]:
    todo = [folder]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    elif not entry.name.endswith(".pyc"):
                        status = entry.stat()
                        times = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
                        yield entry.path, status.st_size, *times
        except OSError:
            continue  # it can't be read by the readers either
