"""The output folder of a cast or conversion. A file that has its final name is whole.

Its note has the digest of the input, so that only the same command resumes in it, and in the end the size of each file.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import npu_rl
from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.disk import disk_errors, sync_folder
from npu_rl.common.errors import HostError, UsageError, WeightsError
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import listed
from npu_rl.weights.tensors.npu_rl_tensors.part_file import PART, PLACES, write_json
from npu_rl.weights.tensors.npu_rl_tensors.untrusted_values import is_size

NOTE = "npu-rl-weights.json"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MARGIN = 256 * 1024 * 1024  # bytes for headers, index, metadata and the file system's own

Command = Literal["cast", "convert", "export"]


class WorkProgress(Protocol):
    """Progress callbacks for a cast, conversion, audit or export."""

    def begin(self, total: int, done: int) -> None:
        """Report how many bytes will be written in total, and how many already exist."""

    def advance(self, count: int) -> None:
        """Report the number of bytes written since the last call."""

    def shard(self, name: str, done: int, total: int) -> None:
        """Report that a shard is finished."""


class NoProgress:
    """Callbacks that report nothing."""

    def begin(self, total: int, done: int) -> None:
        """Report nothing."""

    def advance(self, count: int) -> None:
        """Report nothing."""

    def shard(self, name: str, done: int, total: int) -> None:
        """Report nothing."""


class OutputFolder:
    """The folder that a cast or conversion fills, locked until `close`.

    Attributes:
        files: Size of each file in bytes, once the command has finished; None before.
    """

    def __init__(self, folder: Path, command: Command, source: Path, digest: str) -> None:
        """Open or create the folder.

        Raises:
            UsageError: If it has other files and no note, or another process writes into it.
            WeightsError: If its note is of another input, or can't be read.
        """
        self.folder = folder
        self._path = folder / NOTE
        self._note = {"command": command, "input": str(source), "digest": digest}
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not self._path.is_file():
                _require_empty(folder)
            self._handle = os.open(self._path, _FLAGS, 0o666)
            try:
                _lock(self._handle, self._path)
                self.files = self._compare()
            except BaseException:
                self.close()
                raise

    def write(
        self,
        sizes: Mapping[str, int],
        beside: int,
        task: Callable[[str], Task],
        workers: Workers,
        watch: WorkProgress,
    ) -> int:
        """Have workers write the files that are missing. Returns how many were there.

        Args:
            sizes: Least bytes of each file.
            beside: Bytes of the files that the caller writes next.
            task: What writes a file, by its name.

        Raises:
            WeightsError, HostError: As of the workers; HostError also if the disk is too small.
        """
        left = [name for name, size in sizes.items() if _file_size(self.folder / name) < size]
        kept = len(sizes) - len(left)
        needed = sum(sizes[name] for name in left)
        require_space(self.folder, needed + beside)
        try:
            write_all({name: sizes[name] for name in left}, sum(sizes.values()), kept, task, workers, watch)
        finally:  # of tasks that were killed
            with disk_errors(self.folder):
                for name in left:
                    for part in (name + PART, name + PLACES + PART):
                        (self.folder / part).unlink(missing_ok=True)
        with disk_errors(self.folder):
            for parent in {(self.folder / name).parent for name in sizes}:
                sync_folder(parent)
        return kept

    def finish(self, files: Iterable[str]) -> None:
        """Note that the output is complete, with the sizes of its files."""
        with disk_errors(self.folder):
            sizes = {name: (self.folder / name).stat().st_size for name in files}
            write_json(self._path, {**self._note, **made_by(), "files": sizes})

    def require_unchanged(self) -> None:
        """Raise UsageError if a file of the finished output is missing or has another size."""
        changed = changed_files(self.folder, self.files or {})
        if changed:
            raise UsageError(
                f"The finished output of `weights {self._note['command']}` has changed since it was written",
                where=str(self.folder),
                why=f"Missing or of another size: {listed(changed)}.",
                hint="Choose another output folder, or remove that one.",
            )

    def close(self) -> None:
        """Release the lock."""
        os.close(self._handle)

    def _compare(self) -> dict[str, int] | None:
        """Compare the note with this command, or write it. Returns the files that it lists."""
        if not os.fstat(self._handle).st_size:
            os.write(self._handle, json.dumps(self._note).encode())  # in place, since it is locked
            os.fsync(self._handle)
            return None
        try:
            found = _read_note(self.folder)
            why = f"`weights {found['command']}` has started it from {found.get('input')}; "
            why += f"{self._note['input']} has other values, or other options read it."
        except (OSError, ValueError) as error:
            found, why = {}, str(error)
        if all(found.get(key) == self._note[key] for key in ("command", "digest")):
            return found.get("files")
        what = "The output folder belongs to another input" if found else "The output's note can't be read"
        hint = "Choose another output folder, or remove that one."
        raise WeightsError(what, where=str(self._path), why=why, hint=hint)


def write_all(
    sizes: Mapping[str, int],
    total: int,
    kept: int,
    task: Callable[[str], Task],
    workers: Workers,
    watch: WorkProgress,
) -> None:
    """Have workers write files, and report progress: of `total` bytes, after `kept` files that are there."""
    watch.begin(total, total - sum(sizes.values()))
    finished = kept

    def written(value: Any) -> None:
        nonlocal finished
        finished += 1
        watch.shard(value["shard"], finished, kept + len(sizes))

    workers.run([task(name) for name in sizes], written, watch.advance)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            "Another process writes into the output folder",
            where=str(path),
            hint="Wait for it, or choose another folder.",
        ) from None
    except OSError:
        pass  # a file system without locks


def _read_note(folder: Path) -> dict[str, Any]:
    """Return a folder's note. Raises OSError, ValueError."""
    note = parse_json(read_file(folder / NOTE))
    files = note.get("files", {}) if isinstance(note, dict) else None
    if (
        not isinstance(files, dict)
        or note.get("command") not in ("cast", "convert")
        or not all(map(is_size, files.values()))
    ):
        raise ValueError("it is not a note of `weights cast` or `weights convert`")
    return dict(note)


def unfinished_command(folder: Path) -> Command | None:
    """Return the command whose output in a folder is unfinished; None if all is finished."""
    note = _note_if_any(folder)
    return None if "files" in note else note.get("command")


def finished_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file of a finished cast or conversion; empty without a readable note."""
    sizes: dict[str, int] = _note_if_any(folder).get("files", {})
    return sizes


def _note_if_any(folder: Path) -> dict[str, Any]:
    try:
        return _read_note(folder)
    except (OSError, ValueError):
        return {}


def changed_files(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """Return the names of files that are missing or have another size, sorted."""
    return sorted(name for name, size in sizes.items() if _file_size(folder / name) != size)


def require_apart(source: Path, target: Path) -> None:
    """Raise UsageError if one of two folders is or contains the other."""
    one, other = source.resolve(), target.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise UsageError(
            "Input and output folders overlap",
            where=str(target),
            hint="Choose a folder outside the input's.",
        )


def require_space(target: Path, needed: int) -> None:
    """Raise HostError if the disk of a folder, or of its nearest existing parent, lacks `needed` bytes."""
    with disk_errors(target):
        place = next(path for path in (target, *target.absolute().parents) if path.exists())
        found = os.statvfs(place)
    free, needed = found.f_bavail * found.f_frsize, needed + _MARGIN
    if needed > free:
        raise HostError(
            "The disk is too small for the output",
            where=str(target),
            why=f"It needs {needed:,} bytes, and {free:,} are free.",
            hint="Choose a folder on another disk, or free some space.",
        )


def made_by() -> dict[str, str]:
    """Return npu-rl's version and the current time, for a report."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"npu_rl": npu_rl.__version__, "date": now.isoformat(timespec="seconds")}


def _file_size(path: Path) -> int:
    """Return a file's size in bytes; -1 if the file is inaccessible."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _require_empty(folder: Path) -> None:
    found = sorted(entry.name for entry in folder.iterdir())
    if found:
        raise UsageError(
            "The output folder is not empty",
            where=str(folder),
            why=f"It has {listed(found)}, and no {NOTE} of unfinished work.",
            hint="Choose a folder that is empty or does not exist.",
        )
