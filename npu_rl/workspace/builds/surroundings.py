"""Changes that a build made in a workspace outside its copy of the component."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.stack.git.command import Git, ObjectReader
from npu_rl.stack.git.objects import EXECUTABLE, FILE, SYMLINK
from npu_rl.workspace.folder.file_check import Stat, stat_of
from npu_rl.workspace.folder.receipt import Receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name

_ROOTS = ("code", "src", "activate", ".npu-rl")
_KEPT = (".npu-rl/lock.json", ".npu-rl/receipt.json", ".npu-rl/stat.json", "activate")
# What npu-rl itself writes meanwhile: of this build, or another command's.
_OWN = (".npu-rl/stat.json", ".npu-rl/busy.lock", ".npu-rl/builds")


@dataclass(frozen=True)
class Surroundings:
    """The state of a workspace before a build.

    Attributes:
        stats: `stat` results of all files and folders, by path.
        texts: The bytes of the files that no object of git has.
    """

    stats: Mapping[str, Stat]
    texts: Mapping[str, bytes]


def look_around(paths: WorkspacePaths, apart: Path) -> Surroundings:
    """Return the state of a workspace without the folder of the build.

    Raises:
        OSError: If a file can't be read.
    """
    texts = {name: (paths.root / name).read_bytes() for name in _KEPT if (paths.root / name).is_file()}
    return Surroundings(dict(_walk(paths.root, apart)), texts)


def _walk(home: Path, apart: Path) -> Iterator[tuple[str, Stat]]:
    """Yield each file and folder created by setup. For folders only inode and mode are compared."""
    pending = [home / name for name in _ROOTS]
    while pending:
        place = pending.pop()
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        path = place.relative_to(home).as_posix()
        if place == apart or path in _OWN or path.startswith(".npu-rl/."):
            continue
        if os.path.isdir(place) and not place.is_symlink():  # noqa: PTH112
            pending += [Path(entry.path) for entry in os.scandir(place)]
            yield path, [status.st_ino, status.st_mode]
        else:
            yield path, stat_of(status)


def strays(before: Surroundings, paths: WorkspacePaths, apart: Path) -> list[str]:
    """Return the paths that were added, changed or removed since. A new folder represents its content."""
    after = dict(_walk(paths.root, apart))
    changed = [path for path, stat in after.items() if before.stats.get(path) != stat]
    gone = [path for path in before.stats if path not in after]
    found: list[str] = []
    for path in sorted([*changed, *gone]):
        is_below = any(path.startswith(f"{other}/") and other not in before.stats for other in found)
        if not is_below:
            found.append(path)
    return found


def restore(before: Surroundings, found: list[str], paths: WorkspacePaths, receipt: Receipt) -> list[str]:
    """Undo changes: remove new files, and restore changed or removed ones.

    Returns:
        The paths that can't be restored: of packs and repositories, which another setup lays again.
    """
    lost = []
    inside = paths.inside
    for path in found:
        place = paths.root / path
        if path not in before.stats:
            inside.remove(place)
        elif len(before.stats[path]) == 2:  # a folder, whose files follow
            if not inside.is_folder(place):
                inside.remove(place)
                inside.make(place)
        elif path in before.texts:
            inside.write(place, before.texts[path])
        elif not _restored_from_git(path, paths, receipt):
            lost.append(path)
    return lost


def _restored_from_git(path: str, paths: WorkspacePaths, receipt: Receipt) -> bool:
    """Restore a locked file from the workspace's own objects. Returns False if the path is not a locked file."""
    root = next((root for root in receipt.files if path.startswith(f"{root}/")), None)
    entry = receipt.files[root].get(path[len(root) + 1 :]) if root else None
    if root is None or entry is None or entry[0] not in (FILE, EXECUTABLE, SYMLINK):
        return False
    mode, oid = entry
    with ObjectReader(Git(paths.git / repository_name(root))) as reader:
        _, content = reader.read(oid)
    place = paths.root / path
    paths.inside.remove(place)
    paths.inside.make(place.parent)
    if mode == SYMLINK:
        place.symlink_to(os.fsdecode(content))
    else:
        paths.inside.write(place, content)
        place.chmod(0o755 if mode == EXECUTABLE else 0o644)
    return True
