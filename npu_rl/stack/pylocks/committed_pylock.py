"""The lock of packages beside a manifest, checked against the current manifest."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.pylocks.package_sets import package_set
from npu_rl.stack.pylocks.pylock_file import Pylock, read_pylock
from npu_rl.stack.pylocks.pylock_targets import Target, pylock_path

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest


def committed_pylock(loaded: LoadedManifest, target: Target, named: str) -> Pylock:
    """Return the lock of packages beside a manifest.

    Args:
        named: The manifest as the user named it, for the command in a hint.

    Raises:
        LockError: If it is missing, or was made from other requirements.
    """
    path = pylock_path(loaded.path, target)
    words = f"--manifest {shlex.quote(named)} --python-version {target.python} --machine {target.machine}"
    hint = f"Resolve them: npu-rl requirements {words} --resolve"
    if not path.exists():
        raise LockError("The packages are not locked", where=str(path), hint=hint)
    found = read_pylock(path)
    if (found.made_from, found.target) != (package_set(loaded).digest(), target):
        raise LockError(
            "The lock of packages was made from other requirements",
            where=str(path),
            why=f"{loaded.path.name} has changed since, or the file is another's.",
            hint=hint,
        )
    return found
