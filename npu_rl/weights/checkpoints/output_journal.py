"""The journal that a cast or conversion keeps in its output folder: the input and the finished shards."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import UsageError, WeightsError
from npu_rl.weights.checkpoints.output_folder import PLACES, file_size, sampled_crc32_of
from npu_rl.weights.tensors.npu_rl_tensors.untrusted_values import is_file_name, shown

NAME = "npu-rl-cast.jsonl"
CONVERT_NAME = "npu-rl-convert.jsonl"
_FORMAT = 1
_LAST_OF_DIST = "metadata.json"
_READERS = 4  # threads that read finished files; zlib lets them run side by side
_LARGEST_PLACES = 256 << 20  # bytes; only summed here
_LARGEST = 32 << 20  # bytes; a line of 100 for each of 20,000 files is 2 MB
_MOST_LINES = 200_000
_UNREADABLE = "The journal of the output folder can't be read"
_ANOTHER = "Choose another output folder."
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class OutputJournal:
    """A journal of JSON lines: the input, each finished shard, the start of the other files, and the end.

    Attributes:
        folder: The output folder.
        shards: Size of each finished shard, by file name.
        damaged: Finished shards whose content has changed since; set by `whole`.
        finished: The last line's content; None while the cast is unfinished.
    """

    def __init__(self, folder: Path, source: Path, digest: str, name: str = NAME) -> None:
        """Open or create the journal of a folder, and lock it until `close`.

        Raises:
            UsageError: If the folder has other files but no journal, or another process writes into it.
            WeightsError: If the journal is of another input, or can't be read.
        """
        self.folder = folder
        self._path = folder / name
        self.shards: dict[str, int] = {}
        self.damaged: list[str] = []
        self._sums: dict[str, dict[str, Any]] = {}
        self.finished: Mapping[str, Any] | None = None
        self._completing = False
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not self._path.is_file():
                _require_empty(folder, name)
            self._handle = os.open(self._path, _FLAGS, 0o666)
        try:
            self._lock()
            self._read(source, digest)
        except BaseException:
            os.close(self._handle)
            raise

    def whole(self, files: Collection[str]) -> set[str]:
        """Return the finished output files whose content is unchanged, as far as a sampled checksum shows.

        Reads every file. A file without a checksum, from an older npu-rl's journal, counts as changed.
        """
        named = [name for name in self.shards if name in files]
        with ThreadPoolExecutor(_READERS) as pool:
            found = dict(zip(named, pool.map(self._is_whole, named), strict=True))
        self.damaged = sorted(name for name in named if not found[name])
        return {name for name in named if found[name]}

    def add(self, written: Mapping[str, Any]) -> None:
        """Record a finished shard, and sync the journal to disk.

        Args:
            written: `shard`, its file name; `size`; `sampled_crc32`; `places`, the CRC-32 of a file of places beside
                it, if there is one.
        """
        line = {key: written[key] for key in ("shard", "size", "sampled_crc32", "places") if key in written}
        self._append(line)
        self._note(line)

    def _note(self, line: Mapping[str, Any]) -> None:
        name = str(line["shard"])
        self.shards[name] = int(line["size"])
        self._sums[name] = dict(line)

    def _is_whole(self, name: str) -> bool:
        path, sums = self.folder / name, self._sums[name]
        if file_size(path) != self.shards[name] or sampled_crc32_of(path) != sums.get("sampled_crc32"):
            return False
        if "places" not in sums or (self.folder / _LAST_OF_DIST).is_file():
            return True  # they are removed once .metadata has them
        try:
            return crc32(read_file(path.with_name(path.name + PLACES), _LARGEST_PLACES)) == int(
                sums["places"]
            )
        except (OSError, ValueError, TypeError):
            return False

    def require_free(self, names: Iterable[str]) -> None:
        """Raise UsageError if one of the other output files exists before this command has written it."""
        present = {name for name in names if os.path.lexists(self.folder / name)}
        found = [] if self._completing else sorted(present)
        if found:
            raise UsageError(
                "The output folder has files that this command did not write",
                where=str(self.folder),
                why=", ".join(found[:5])
                + (f" and {len(found) - 5} more" if found[5:] else "")
                + ": the output needs these names, and has not written them yet.",
                hint="Move them elsewhere, and run the command again.",
            )

    def complete(self, names: Iterable[str]) -> None:
        """Record that the other output files are about to be written. Raises UsageError as `require_free` does."""
        self.require_free(names)
        if not self._completing:
            self._append({"completing": True})
            self._completing = True

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Record the end of the cast or conversion."""
        self._append({"finished": dict(facts)})
        self.finished = facts

    def close(self) -> None:
        """Release the lock."""
        os.close(self._handle)

    def _content(self) -> bytes:
        try:
            with disk_errors(self._path):
                return read_file(self._path, _LARGEST)
        except ValueError as error:
            raise WeightsError(_UNREADABLE, where=str(self._path), why=str(error), hint=_ANOTHER) from error

    def _append(self, line: Mapping[str, Any]) -> None:
        with disk_errors(self._path):
            os.write(self._handle, json.dumps(line).encode() + b"\n")
            os.fsync(self._handle)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "Another process writes into the output folder",
                where=str(self._path),
                hint="Wait for it, or choose another folder.",
            ) from None
        except OSError:
            pass  # a file system without locks

    def _read(self, source: Path, digest: str) -> None:
        content = self._content()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):  # a line that a kill or a full disk cut off
            os.ftruncate(self._handle, len(whole))
        if not whole:
            self._append({"format": _FORMAT, "input": str(source), "digest": digest})
            return
        try:
            lines = _lines(whole)
            first = next(lines)
            same = first["format"] == _FORMAT and first["digest"] == digest
            for line in lines:
                if "finished" in line:
                    self.finished = line["finished"]
                elif "completing" in line:
                    self._completing = True
                else:
                    self._note(line)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            kind = type(error).__name__
            why = f"A line lacks {error}." if isinstance(error, KeyError) else f"{kind}: {error}"
            raise WeightsError(_UNREADABLE, where=str(self._path), why=why, hint=_ANOTHER) from error
        if not same:
            raise WeightsError(
                "The output folder belongs to another input",
                where=str(self._path),
                why=f"It was started from {first.get('input')}; {source} has another index, headers or values.",
                hint="Choose another output folder, or remove that one.",
            )


def _lines(content: bytes) -> Iterator[Any]:
    """Yield the values of a journal's lines. Raises ValueError."""
    if content.count(b"\n") > _MOST_LINES:
        raise ValueError(f"it has more than {_MOST_LINES} lines")
    return map(parse_json, content.splitlines())


def _file_name(line: Mapping[str, Any]) -> str:
    """Return the name of the finished file in a line. Raises ValueError if it is outside the journal's folder."""
    name = line["shard"]
    if not isinstance(name, str) or not all(map(is_file_name, name.split("/"))):
        raise ValueError(f"{shown(name)} is not a file of this folder")
    return name


def is_unfinished(folder: Path, name: str = NAME) -> bool:
    """Return whether a folder has the journal of an unfinished cast (or conversion, with CONVERT_NAME)."""
    try:
        lines = read_file(folder / name, _LARGEST).splitlines()
    except (OSError, ValueError):
        return False
    return not lines or b'"finished"' not in lines[-1]


def finished_sizes(folder: Path, name: str) -> dict[str, int]:
    """Return the size of each finished file in a folder's journal; empty without a readable journal."""
    sizes: dict[str, int] = {}
    try:
        for line in _lines(read_file(folder / name, _LARGEST)):
            if "shard" in line:
                sizes[_file_name(line)] = int(line["size"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return {}
    return sizes


def _require_empty(folder: Path, name: str) -> None:
    found = sorted(entry.name for entry in folder.iterdir())
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UsageError(
            "The output folder is not empty",
            where=str(folder),
            why=f"It has {', '.join(found[:3])}{more}, and no {name} of unfinished work.",
            hint="Choose a folder that is empty or does not exist.",
        )
