"""Digests of a manifest's files, compared without importing yaml or pydantic.

A lock records `files`: the manifest and each file it extends, by a portable name (relative to the
manifest's folder, or `bundled:NAME.yaml`), with the sha256 of the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from npu_rl.common.bounded import open_file
from npu_rl.common.bundled import data_root

SIZE_LIMIT = 256 * 1024
BUNDLED = "bundled:"


def read_bounded(path: Path) -> bytes:
    """Return the bytes of a regular file, at most SIZE_LIMIT + 1 of them.

    Raises OSError; a device or a pipe is refused, because reading it might never end.
    """
    with open_file(path) as stream:
        return stream.read(SIZE_LIMIT + 1)


def sha256(raw: bytes) -> str:
    """Return the SHA-256 of the bytes of a manifest file, as 64 hex digits."""
    return hashlib.sha256(raw).hexdigest()


def unchanged(files: Mapping[str, str], manifest_path: Path) -> bool:
    """Return whether the manifest and every file it extends still have the recorded bytes.

    Anything that can't be read, or a record without this manifest, counts as changed; nothing is raised.

    Args:
        files: SHA-256 by portable name, as in `LoadedManifest.files`.
    """
    try:
        folder = manifest_path.parent.resolve()
        bundled = data_root() / "manifests"
        own = manifest_path.name
        if own not in files and not (f"{BUNDLED}{own}" in files and folder == bundled.resolve()):
            return False
        return all(_same(name, digest, folder, bundled) for name, digest in files.items())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
        return False


def _same(name: str, digest: str, folder: Path, bundled: Path) -> bool:
    base, relative = (bundled, name[len(BUNDLED) :]) if name.startswith(BUNDLED) else (folder, name)
    if not relative or PurePosixPath(relative).is_absolute():
        return False
    raw = read_bounded(base / relative)
    return len(raw) <= SIZE_LIMIT and sha256(raw) == digest
