"""`--allow-drift`: run a workspace that differs from its lock. The difference is recorded, and the run unproven."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from npu_rl.common.bounded import open_file
from npu_rl.common.errors import UsageError, WorkspaceError
from npu_rl.training.record.attempt import write_json, write_private
from npu_rl.workspace.folder.receipt import again_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.diff import patches_of, place_in_tree
from npu_rl.workspace.verification.verify import Drift, Report

PATCH_FILE, LIST_FILE = "drift.patch", "drift.json"

_FILE_LIMIT = 1 << 20  # bytes; of larger files drift.json has size and SHA-256, and drift.patch has nothing
_PATCH_LIMIT = 16 << 20  # bytes of all files in drift.patch
_HASHED_LIMIT = (
    1 << 30
)  # bytes of all files with a SHA-256; a sparse terabyte costs nothing to make, and hours to read
_REFERENCE_FILES = (".npu-rl/lock.json", ".npu-rl/receipt.json")  # what all other files are compared with


@dataclasses.dataclass(frozen=True)
class DriftedFile:
    """A path of the workspace that differs from the lock.

    Attributes:
        kind: The kind of drift, such as "modified".
        size: Bytes of the file; None if there is no regular file.
        sha256: Digest of the file; None if there is no regular file, or if it is too large.
        in_patch: Whether drift.patch has it.
    """

    path: str
    kind: str
    component: str | None
    size: int | None
    sha256: str | None
    in_patch: bool


@dataclasses.dataclass(frozen=True)
class AllowedDrift:
    """The difference that the user allowed, and the reason.

    Attributes:
        patch: Their difference in git's format; may be empty.
    """

    reason: str
    places: tuple[DriftedFile, ...]
    patch: bytes = dataclasses.field(repr=False)

    def to_json(self) -> dict[str, object]:
        """Return the reason and the number of files, as in run.json and reports; the paths are in drift.json."""
        return {"reason": self.reason, "files": len(self.places)}

    def write(self, folder: Path) -> tuple[str, ...]:
        """Write drift.json and drift.patch, and return their names."""
        write_json(
            folder / LIST_FILE, {"reason": self.reason, "files": list(map(dataclasses.asdict, self.places))}
        )
        write_private(folder / PATCH_FILE, self.patch)
        return LIST_FILE, PATCH_FILE


def parse_reason(text: str) -> str:
    """Return the user's reason as one printable line. Raises UsageError if that line is empty."""
    reason = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not reason:
        raise UsageError(
            "--allow-drift needs a reason",
            why="The reason is recorded with the run's numbers.",
            hint="Give the reason why the tree differs: --allow-drift 'a print in the reward'",
        )
    return reason


def allowed_drift(
    paths: WorkspacePaths, report: Report, reason: str, notify: Callable[[str], None]
) -> AllowedDrift:
    """Return the difference for the record. Raises WorkspaceError if the lock or the receipt has changed."""
    if changed_references := [drift.path for drift in report.drift if drift.path in _REFERENCE_FILES]:
        raise WorkspaceError(
            "The workspace can't be judged, and --allow-drift can't change that",
            where=str(paths.root / changed_references[0]),
            why="It lists what the files have to be, and is not as setup wrote it.",
            hint=again_hint(paths, report.receipt.setup),
        )
    found = _describe_all(paths.root, report.drift)
    shown = _paths_for_patch(found[drift.path] for drift in report.drift if place_in_tree(drift, report))
    patch = b"".join(patches_of(paths, report, _ignore, only=shown))
    places = [dataclasses.replace(place, in_patch=place.path in shown) for place in found.values()]
    left_out = sum(not place.in_patch for place in places)
    if left_out:
        notify(
            f"{left_out} of {len(places)} differing files are not in {PATCH_FILE}: "
            f"{LIST_FILE} has their size, and the SHA-256 of all but the largest."
        )
    return AllowedDrift(reason, tuple(places), patch)


def drift_digest(paths: WorkspacePaths, report: Report) -> str | None:
    """Return the SHA-256 of the files that differ from the lock, as a run of them records it; None if none does."""
    places = _describe_all(paths.root, report.drift).values()
    found = sorted([place.path, place.kind, place.size, place.sha256] for place in places)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None


def _ignore(message: str) -> None:
    del message  # drift.json lists what the patch lacks


def _describe_all(root: Path, drift: Iterable[Drift]) -> dict[str, DriftedFile]:
    """Return the difference of each path. Beyond a total size, only sizes of the largest files are given."""
    found = {one.path: _describe(root, one) for one in drift}
    left = _HASHED_LIMIT
    for place in sorted(found.values(), key=lambda place: (place.size or 0, place.path)):
        left -= place.size or 0
        if place.size is not None and left >= 0:
            found[place.path] = dataclasses.replace(place, sha256=_sha256(root / place.path, place.size))
    return found


def _describe(root: Path, drift: Drift) -> DriftedFile:
    path, size = root / drift.path, None
    with contextlib.suppress(OSError):  # missing, no file, or unreadable
        if not path.is_symlink():
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
    return DriftedFile(drift.path, drift.kind, drift.component, size, None, in_patch=False)


def _sha256(path: Path, size: int) -> str | None:
    """Return the digest of a file that had `size` bytes; None if it has grown since or can't be read."""
    digest = hashlib.sha256()
    try:
        with open_file(path) as file:
            while chunk := file.read(_FILE_LIMIT):
                digest.update(chunk)
                size -= len(chunk)
                if size < 0:
                    return None
    except OSError:
        return None
    return digest.hexdigest()


def _paths_for_patch(places: Iterable[DriftedFile]) -> frozenset[str]:
    """Return the paths of small files that fit into drift.patch, the smallest first."""
    total, paths = 0, set()
    for place in sorted(set(places), key=lambda place: (place.size or 0, place.path)):
        total += place.size or 0
        if (place.size or 0) <= _FILE_LIMIT and total <= _PATCH_LIMIT:
            paths.add(place.path)
    return frozenset(paths)
