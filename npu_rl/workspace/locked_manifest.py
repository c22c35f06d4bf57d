"""The name of a workspace's manifest, without the lock's model: its import and the check take a tenth of a plan."""

from __future__ import annotations

from npu_rl.config import reading_cache
from npu_rl.config.file_digests import sha256
from npu_rl.workspace.layout import Layout

_LARGEST = 32 * 1024 * 1024


def manifest_of(layout: Layout) -> str:
    """Return the name of the manifest that a workspace was set up from.

    The lock is read in full, and checked unless a lock of the same bytes has been before.

    Raises:
        LockError: If the lock is invalid.
    """
    try:
        key = sha256(layout.inside.read(layout.lock, _LARGEST))
    except OSError:
        key = ""
    name = reading_cache.recall("lock", key) if key else None
    if isinstance(name, str):
        return name
    from npu_rl.workspace.receipt import read_lock

    lock, _ = read_lock(layout)
    if key:
        reading_cache.keep("lock", key, lock.manifest)
    return lock.manifest
