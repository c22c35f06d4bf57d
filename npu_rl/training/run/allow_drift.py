"""`--allow-drift`: run a workspace that differs from its lock. The difference is recorded, and the run unproven."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.bounded import hash_file
from npu_rl.common.errors import UsageError, WorkspaceError
from npu_rl.training.record.attempt import write_json, write_private
from npu_rl.workspace.folder.receipt import again_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.diff import fit_for_patch, patches_of
from npu_rl.workspace.verification.verify import Report

PATCH_FILE, LIST_FILE = "drift.patch", "drift.json"
_REFERENCE_FILES = (".npu-rl/lock.json", ".npu-rl/receipt.json")  # what all other files are compared with


@dataclass(frozen=True)
class AllowedDrift:
    """The difference that the user allowed, and the reason.

    Attributes:
        files: The kind of drift, such as "modified", by path.
        patch: As `npu-rl diff` prints it; what is too large for a patch is only in `files`.
    """

    reason: str
    files: Mapping[str, str]
    patch: bytes = field(repr=False)

    def to_json(self) -> dict[str, object]:
        """Return the reason and the number of files, as in run.json and reports; the paths are in drift.json."""
        return {"reason": self.reason, "files": len(self.files)}

    def write(self, folder: Path) -> tuple[str, ...]:
        """Write drift.json and drift.patch, and return their names."""
        write_json(folder / LIST_FILE, {"reason": self.reason, "files": dict(self.files)})
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
    patch = b"".join(patches_of(paths, fit_for_patch(paths, report, notify), notify))
    return AllowedDrift(reason, {drift.path: drift.kind for drift in report.drift}, patch)


def drift_digest(paths: WorkspacePaths, report: Report) -> str | None:
    """Return the SHA-256 of the files that differ from the lock; None if none does."""
    found = sorted({(one.path, one.kind, _content(paths.root / one.path)) for one in report.drift})
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None


def _content(path: Path) -> str:
    try:
        return "" if path.is_symlink() else hash_file(path)
    except OSError:  # missing, or no regular file
        return ""
