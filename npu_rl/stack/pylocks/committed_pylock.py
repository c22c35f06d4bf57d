"""The lock of packages beside a manifest, checked against the current manifest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.bounded import read_file
from npu_rl.common.errors import LockError
from npu_rl.stack.pylocks.package_sets import package_set
from npu_rl.stack.pylocks.pylock_file import Pylock, read_pylock
from npu_rl.stack.pylocks.pylock_targets import Target, pylock_path, unresolved_path

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

_LONGEST_REASON = 1 << 16  # bytes


def committed_pylock(loaded: LoadedManifest, target: Target, named: str) -> Pylock:
    """Return the lock of packages beside a manifest.

    Args:
        named: The manifest as the user named it, for the command in a hint.

    Raises:
        LockError: If it is missing (with uv's reason if no set fits), or was made from other requirements.
    """
    path, failed = pylock_path(loaded.path, target), unresolved_path(loaded.path, target)
    words = f"--manifest {shlex.quote(named)} --python-version {target.python} --machine {target.machine}"
    hint = f"Resolve them: npu-rl requirements {words} --resolve"
    if not path.exists():
        reason = read_reason(failed)
        what = (
            "No set of packages fits this manifest's requirements"
            if reason
            else "The packages are not locked"
        )
        raise LockError(what, where=str(failed if reason else path), why=reason or None, hint=hint)
    found = read_pylock(path)
    if (found.made_from, found.target) != (package_set(loaded).digest(), target):
        raise LockError(
            "The lock of packages was made from other requirements",
            where=str(path),
            why=f"{loaded.path.name} has changed since, or the file is another's.",
            hint=hint,
        )
    return found


def read_reason(path: Path) -> str:
    """Return the reason why no set fits; empty if one does. Raises LockError if it can't be read."""
    try:
        return read_file(path, _LONGEST_REASON).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise LockError(
            "The reason for a missing lock can't be read", where=str(path), why=str(error)
        ) from error
