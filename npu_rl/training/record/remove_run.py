"""`runs rm`: remove the files that an ended run's record is known to have.

The record's own files, the trainer's below them, and nothing that somebody put beside: that stays where it is, and is
named. A run without any such is gone at one moment, when its folder loses its name; else its run.json goes last, so
that a removal that was killed can be repeated. What is left of one is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_file
from npu_rl.common.disk import disk_errors, remove_tree, written_name
from npu_rl.common.errors import NpuRlError
from npu_rl.training.record.named_paths import named_paths
from npu_rl.training.record.other_host import other_host_error, other_host_of
from npu_rl.training.record.record_masking import is_of_attempt
from npu_rl.training.record.recorded_attempt import optional_object
from npu_rl.training.record.rehearsal_end import REHEARSAL_END
from npu_rl.training.record.run_lock import LOCK
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import LATEST
from npu_rl.training.record.saved_checkpoints.saved_steps import DATA, UNWHOLE_DATA

_FACTS = "run.json"
_FILES = ("lock.json", "recipe.yaml", "rehearsal.json", REHEARSAL_END)
_MEGATRON = re.compile(r"iter_[0-9]{7,9}")
_STEP = re.compile(r"global_step_[0-9]{1,9}")
# verl's save_checkpoint, and what `--resume` makes of its data.pt; a person puts merged weights beside them.
_OF_STEP = ("actor", "critic", DATA, UNWHOLE_DATA)
_STEP_FILE = re.compile(r"[0-9]{1,9}\.jsonl")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_REMOVED = re.compile(r"\.[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.removed-[0-9a-f]{12}")
_LARGEST = 4 << 20  # bytes of a recipe or command line that is searched


@dataclass(frozen=True)
class RemovedRun:
    """A removed run.

    Attributes:
        size: Bytes that its files had.
        kept: What was in its folder and is not of a run's record, which is still there.
    """

    run: str
    folder: Path
    size: int
    kept: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result as documented in docs/json.md."""
        return {
            "run": self.run,
            "folder": str(self.folder),
            "bytes": self.size,
            "kept": [str(path) for path in self.kept],
        }


def remove_run(record: RunRecord) -> RemovedRun:
    """Remove a run.

    Raises:
        NpuRlError: If it goes on, or may on another host, processes of it are left on this host, or another run
            resumes from its checkpoints.
        WorkspaceError: If a folder of its record is a link.
    """
    root, folder = record.folder.parent, record.folder
    pids = record.processes()
    if record.is_locked or pids:
        raise _alive_error(record, pids)
    host = other_host_of(record.attempts)
    if host is not None:
        raise other_host_error(record.name, folder, host)
    with record.settled():
        users = users_of(record)
        if users:
            raise _used_error(record, users)
        listed = _listed(folder)
        kept = sorted(_foreign(folder, set(listed)))
        size = sum(map(_size, listed))
        removed = root / f".{record.name}.removed-{os.urandom(6).hex()}"
        with disk_errors(folder):
            if kept:
                _move_all(folder, listed, removed)
            else:
                folder.rename(removed)
            remove_tree(removed)
    _finish_others(root)
    return RemovedRun(record.name, folder, size, tuple(kept))


def users_of(record: RunRecord) -> list[str]:
    """Return the names of runs beside a run whose recipe or command names one of its checkpoints."""
    place = os.path.realpath(record.checkpoints)
    needles = [os.fsencode(one) for one in {str(record.checkpoints), place}]
    found = []
    for facts in sorted(record.folder.parent.glob(f"*/{_FACTS}")):
        other = facts.parent
        if other == record.folder:
            continue
        base = _recipe_folder(facts)
        texts = [other / "recipe.yaml", *sorted((other / "attempts").glob("*/command.json"))]
        if any(_names(text, needles) or _leads_to(text, base, place) for text in texts):
            found.append(other.name)
    return found


def _recipe_folder(facts: Path) -> Path:
    """Return the folder that local paths in a run's recipe are relative to; that of its record, if it is unknown."""
    path = optional_object(facts).get("recipe_path")
    return Path(path).parent if isinstance(path, str) and path.startswith("/") else facts.parent


def _names(path: Path, needles: Sequence[bytes]) -> bool:
    """Return whether a file contains one of the paths, not just as the beginning of a longer name."""
    text = _text_of(path)
    return any(re.search(re.escape(needle) + rb"(?![A-Za-z0-9._-])", text) for needle in needles)


def _leads_to(path: Path, base: Path, place: str) -> bool:
    """Return whether a file has a path that leads into a folder, through links or `..`."""
    real = (os.path.realpath(_expanded(word, base)) for word in named_paths(_text_of(path)))
    return any(one == place or one.startswith(f"{place}/") for one in real)


def _expanded(word: str, base: Path) -> Path:
    return Path.home() / word[2:] if word.startswith("~/") else base / word


def _text_of(path: Path) -> bytes:
    try:
        return read_file(path, _LARGEST)
    except (OSError, ValueError):
        return b""


# -- what a record lists -------------------------------------------------------------------------------


def _listed(folder: Path) -> list[Path]:
    """Return the files and folders that belong to a run's record, with run.json and the folders last."""
    found = [path for place, belongs in _places(folder) for path in _entries(place) if _is_own(path, belongs)]
    begun = [path for path in _entries(folder) if written_name(path.name) in (*_FILES, _FACTS)]
    own = [folder / name for name in (*_FILES, _FACTS) if os.path.lexists(folder / name)]
    return [*found, *begun, *own]


def _is_own(path: Path, belongs: Callable[[str], bool]) -> bool:
    """Return whether a file belongs to a record, also as the beginning of one that a killed npu-rl has left."""
    written = written_name(path.name)
    return belongs(path.name) or (written is not None and belongs(written))


def _places(folder: Path) -> list[tuple[Path, Callable[[str], bool]]]:
    """Return a record's folders that also contain foreign files, innermost first, and the record's own files."""
    attempts = [path for path in _entries(folder / "attempts") if _NUMBER.fullmatch(path.name)]
    return [
        *(
            (step, lambda name: name in _OF_STEP)
            for step in _entries(folder / "checkpoints")
            if _is_step(step)
        ),
        (folder / "checkpoints", lambda name: name == LATEST or _MEGATRON.fullmatch(name) is not None),
        (folder / "samples" / "validation", lambda name: _STEP_FILE.fullmatch(name) is not None),
        (folder / "samples", lambda name: _STEP_FILE.fullmatch(name) is not None),
        (folder / "tensorboard", lambda name: "tfevents" in name),
        *((attempt, is_of_attempt) for attempt in attempts),
        (folder / "attempts", lambda _: False),
    ]


def _is_step(path: Path) -> bool:
    return _STEP.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _foreign(folder: Path, listed: set[Path]) -> Iterator[Path]:
    """Yield the files in a record's folders that don't belong to it."""
    places = [place for place, _ in _places(folder)]
    for place in (folder, *places):
        for path in _entries(place):
            is_place = path in places and not path.is_symlink()  # a link to another disk is a person's
            if path not in listed and not is_place and path != folder / LOCK:
                yield path


def _entries(folder: Path) -> list[Path]:
    if folder.is_symlink():  # it is of somebody else, as a whole
        return []
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _move_all(folder: Path, listed: Sequence[Path], removed: Path) -> None:
    """Move a record's files out of its folder, and remove its folders that become empty."""
    removed.mkdir(mode=0o700)
    for number, path in enumerate(listed):
        path.rename(removed / str(number))
    for place, _ in _places(folder):
        with contextlib.suppress(OSError):
            place.rmdir()
    (folder / LOCK).unlink()


def _finish_others(root: Path) -> None:
    """Remove the leftovers of an earlier removal that was killed."""
    for path in root.iterdir():
        if _REMOVED.fullmatch(path.name) and not path.is_symlink():
            remove_tree(path)


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(_size(Path(entry.path)) for entry in os.scandir(path))
    try:
        return path.lstat().st_size
    except OSError:
        return 0


# -- refusals ------------------------------------------------------------------------------------------


def _alive_error(record: RunRecord, pids: Sequence[int]) -> NpuRlError:
    what = "goes on" if record.is_locked or record.is_incomplete else "has left processes"
    return NpuRlError(
        f"Run {record.name} {what}, so it is not removed",
        where=str(record.folder) + (f", pid {' '.join(map(str, pids))}" if pids else ""),
        hint=f"End it first: npu-rl runs stop {record.name}",
    )


def _used_error(record: RunRecord, users: Sequence[str]) -> NpuRlError:
    return NpuRlError(
        f"Run {record.name} is not removed, because {', '.join(users)} resumes from its checkpoints",
        where=str(record.checkpoints),
        why="The recipe or command of that run names this folder.",
        hint=f"Remove that run first: npu-rl runs rm {users[0]}",
    )
