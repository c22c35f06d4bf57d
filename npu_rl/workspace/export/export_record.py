"""Record of the files that this user's exports have written for a workspace, in the user's state folder.

Until the lock is made anew, only this record tells a patch that an earlier export wrote, which the next one may
replace or remove, from one that somebody else put beside the manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from npu_rl.common.user_state import keep_facts, kept_facts
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_KIND, _SUBJECT = "export", "workspace"


def exported_files(paths: WorkspacePaths, lock_digest: str) -> Mapping[str, frozenset[str]]:
    """Return the SHA-256 digests, by path, of files that exports have written for a workspace with this lock."""
    kept = kept_facts(_KIND, _SUBJECT, paths.root) or {}
    files = kept.get("files")
    if kept.get("lock") != lock_digest or not isinstance(files, dict):
        return {}
    return {
        path: frozenset(map(str, digests)) for path, digests in files.items() if isinstance(digests, list)
    }


def keep_exported(
    paths: WorkspacePaths,
    lock_digest: str,
    before: Mapping[str, frozenset[str]],
    written: Iterable[tuple[Path, bytes]],
    edited: Collection[Path] = (),
) -> None:
    """Record the files about to be written, so that a killed export can be run again.

    Args:
        edited: The ones among them with a header that a user has edited, whose content is not an export's.
    """
    files = {path: set(digests) for path, digests in before.items()}
    for path, data in written:
        files.setdefault(key_of(path), set()).update(() if path in edited else (digest(data),))
    facts = {"lock": lock_digest, "files": {path: sorted(found) for path, found in files.items()}}
    with contextlib.suppress(
        OSError, ValueError
    ):  # without a HOME each export takes such a file for somebody else's
        keep_facts(_KIND, _SUBJECT, paths.root, facts)


def key_of(path: Path) -> str:
    """Return the name under which a file is recorded."""
    return os.path.realpath(path)


def digest(data: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()
