"""Cache of results found in a code folder's files, for later commands on the same files.

Following values through the code takes half of the time of a `plan`. An answer holds as long as neither a file of the
folder nor npu-rl itself has changed, so only what was edited is examined again. The cache lies beside byte code, in a
folder of its user; where none can be made nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from npu_rl.common.bounded import read_json
from npu_rl.common.byte_code import NOWHERE, place
from npu_rl.common.disk import write_atomically

_MOST = 2048  # answers in a file; the flagship's recipe has 180
_LARGEST = 16 * 1024 * 1024
_SETTLED_NS = 2 * 10**9  # a file changed as long ago cannot change again under the same time of change

_Answer = TypeVar("_Answer")


class AnswerCache:
    """Cached answers to questions about one code folder. `save` writes new ones."""

    def __init__(self, code: Path) -> None:
        self._code = code
        folder = place(f"{digest(os.path.realpath(code))}-answers")
        self._file = None if folder == NOWHERE else Path(folder, "answers.json")
        self._state = ("", 0) if self._file is None else _state(code)
        self._known = self._read()
        self._new: dict[str, Any] = {}

    def answer(
        self,
        question: Sequence[object],
        find: Callable[[], _Answer],
        to_json: Callable[[_Answer], Any],
        from_json: Callable[[Any], _Answer],
    ) -> _Answer:
        """Return the cached answer to a question, or find it.

        An answer is cached if it survives a round trip through JSON.

        Args:
            question: All that the answer depends on besides the files of the folder and of npu-rl.
            find: Finds the answer in the files.
            to_json: Returns an answer as JSON values; raises ValueError if it must not be cached.
            from_json: Reads what `to_json` returned.
        """
        name = digest(question)
        if name in self._known:
            try:
                return from_json(self._known[name])
            except (TypeError, KeyError, ValueError, AttributeError):
                pass  # damaged
        found = find()
        if self._file is not None:
            try:
                written = json.loads(json.dumps(to_json(found)))
                if from_json(written) == found:
                    self._new[name] = written
            except (TypeError, ValueError):
                pass  # it holds what JSON can't write
        return found

    def save(self) -> None:
        """Write new answers, unless a file changed so recently that another change might keep its timestamp."""
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

    def _read(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            kept = read_json(self._file, _LARGEST)
        except (OSError, ValueError):
            return {}
        answers = kept.get("answers") if isinstance(kept, dict) else None
        return answers if isinstance(answers, dict) and kept.get("state") == self._state[0] else {}


def digest(value: object) -> str:
    """Return a short digest of an answer's dependencies."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _state(code: Path) -> tuple[str, int]:
    """Return a digest of the `stat` results of the folder's and npu-rl's files, and the latest change time in ns."""
    rows, newest = [], 0
    todo = [str(code), str(Path(__file__).parents[2])]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    elif not entry.name.endswith(".pyc"):
                        status = entry.stat()
                        newest = max(newest, status.st_ctime_ns)
                        times = f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
                        rows.append(f"{entry.path}\0{status.st_size} {times}")
        except OSError:
            continue  # it can't be read by what looks for answers either
    rows.sort()
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()[:32], newest
