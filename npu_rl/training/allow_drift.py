"""`--allow-drift`: a workspace that is not as locked is run; the record has the difference, the run is unproven."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from npu_rl.errors import UsageError, WorkspaceError
from npu_rl.training.attempt import write_json, write_private
from npu_rl.verification.diff import patches_of, place_in_tree
from npu_rl.verification.verify import Drift, Report
from npu_rl.workspace.layout import Layout

PATCH, LIST = "drift.patch", "drift.json"

_LARGEST = 1 << 20  # bytes of a file that is in the patch; of a larger one the list has size and SHA-256
_ALL = 16 << 20  # bytes of all of them
_JUDGES = (".npu-rl/lock.json", ".npu-rl/receipt.json")  # what the rest is held against


@dataclasses.dataclass(frozen=True)
class Different:
    """A place that is not as locked. in_patch: the patch shows it. size, sha256: of what is there; None for no file."""

    path: str
    kind: str
    component: str | None
    size: int | None
    sha256: str | None
    in_patch: bool


@dataclasses.dataclass(frozen=True)
class AllowedDrift:
    """The difference that a person allowed, and why. patch: in git's format; empty if nothing of it has such a form."""

    reason: str
    places: tuple[Different, ...]
    patch: bytes = dataclasses.field(repr=False)

    def to_json(self) -> dict[str, object]:
        """As run.json and the reports have it; the places are in drift.json."""
        return {"reason": self.reason, "files": len(self.places)}

    def write(self, folder: Path) -> tuple[str, ...]:
        """Write drift.json and drift.patch, and return their names."""
        write_json(
            folder / LIST, {"reason": self.reason, "files": list(map(dataclasses.asdict, self.places))}
        )
        write_private(folder / PATCH, self.patch)
        return LIST, PATCH


def reason_of(text: str) -> str:
    """The reason a person gives, in one line. Raises UsageError if there is none."""
    reason = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not reason:
        raise UsageError(
            "--allow-drift needs a reason",
            why="The reason is recorded with the run's numbers.",
            hint="Give the reason why the tree differs: --allow-drift 'a print in the reward'",
        )
    return reason


def allow(layout: Layout, report: Report, reason: str, tell: Callable[[str], None]) -> AllowedDrift:
    """What differs, for the record. Raises WorkspaceError for what a person can't allow, or if it can't be shown."""
    if judges := [drift.path for drift in report.drift if drift.path in _JUDGES]:
        raise WorkspaceError(
            "The workspace can't be judged, and --allow-drift can't change that",
            where=str(layout.root / judges[0]),
            why="It lists what the files have to be, and is not as setup wrote it.",
            hint="Set the workspace up again: npu-rl setup --manifest NAME --workspace DIR",
        )
    found = {drift.path: _look(layout.root, drift) for drift in report.drift}
    shown = _small(found[drift.path] for drift in report.drift if place_in_tree(drift, report))
    patch = b"".join(patches_of(layout, report, _nobody, only=shown))
    places = [dataclasses.replace(place, in_patch=place.path in shown) for place in found.values()]
    left_out = sum(not place.in_patch for place in places)
    if left_out:
        tell(
            f"{left_out} of {len(places)} differing files are not in {PATCH}: {LIST} has their size and SHA-256."
        )
    return AllowedDrift(reason, tuple(places), patch)


def _nobody(message: str) -> None:
    del message  # drift.json says what the patch does not show


def _look(root: Path, drift: Drift) -> Different:
    path = root / drift.path
    size, digest = None, None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        pass  # missing, a link, or not to be read
    else:
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                size, digest = status.st_size, _sha256(file.read)
    return Different(drift.path, drift.kind, drift.component, size, digest, in_patch=False)


def _sha256(read: Callable[[int], bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := read(_LARGEST):
        digest.update(chunk)
    return digest.hexdigest()


def _small(places: Iterable[Different]) -> frozenset[str]:
    """Paths of what the patch shows: of small files, the smallest first, as many as there is room for."""
    total, paths = 0, set()
    for place in sorted(set(places), key=lambda place: (place.size or 0, place.path)):
        total += place.size or 0
        if (place.size or 0) <= _LARGEST and total <= _ALL:
            paths.add(place.path)
    return frozenset(paths)
