"""Comparison of a workspace with an expected lock digest, which is kept outside the workspace."""

from __future__ import annotations

import re
import shlex

from npu_rl.common.errors import UsageError, WorkspaceError
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_DIGEST = re.compile(r"[0-9a-f]{64}")


def lock_digest(text: str) -> str:
    """Check the value of `--expect`.

    A tree or commit id is not enough: neither covers the environment, the sources or the requirements of a
    lock.

    Raises:
        UsageError: If it is not a digest.
    """
    if _DIGEST.fullmatch(text):
        return text
    raise UsageError(
        f"Invalid lock digest {text!r}",
        where="--expect",
        why="A lock digest has 64 digits, 0-9 and a-f.",
        hint='`npu-rl setup` and `npu-rl verify` print it as "lock"; in NAME.lock.json it is the last key, "digest".',
    )


def require_lock(paths: WorkspacePaths, found: str, expected: str) -> None:
    """Raise WorkspaceError unless the workspace's lock has the expected digest."""
    if found != expected:
        raise WorkspaceError(
            "The workspace was set up from another lock than the expected one",
            where=str(paths.lock),
            why=f"Expected {expected},\nfound {found}.",
            hint="Set it up from the manifest of the expected lock: "
            f"npu-rl setup --manifest NAME --workspace {shlex.quote(str(paths.root))}",
        )


def is_expected_script(paths: WorkspacePaths, lock: Lock) -> bool:
    """Return whether `activate` is what this npu-rl writes for the lock; the hash in the receipt can be forged."""
    from npu_rl.workspace.folder.materialise import activate_script

    script = activate_script(lock.env).encode()
    try:
        return paths.inside.read(paths.root / "activate", len(script)) == script
    except OSError:
        return False
