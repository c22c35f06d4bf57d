"""The anchor outside a workspace: the digest of the lock that it has to be laid from."""

from __future__ import annotations

import re

from npu_rl.errors import UsageError, WorkspaceError
from npu_rl.lock.lock_model import Lock
from npu_rl.workspace.layout import Layout

_DIGEST = re.compile(r"[0-9a-f]{64}")


def lock_digest(text: str) -> str:
    """The value of `--expect`. Raises UsageError for what is no digest.

    A tree or commit id would not do: neither covers the environment, the sources or the requirements of a lock.
    """
    if _DIGEST.fullmatch(text):
        return text
    raise UsageError(
        f"Not the digest of a lock: {text!r}",
        where="--expect",
        why="It has 64 digits, 0-9 and a-f.",
        hint='`npu-rl setup` and `npu-rl verify` print it as "lock"; it is "digest" at the end of NAME.lock.json.',
    )


def demand_lock(layout: Layout, found: str, expected: str) -> None:
    """Raise WorkspaceError unless the workspace's lock has the expected digest."""
    if found != expected:
        raise WorkspaceError(
            "The workspace is not of the expected lock",
            where=str(layout.lock),
            why=f"Expected is {expected},\nfound {found}.",
            hint="Set it up from the lock that you expect: npu-rl setup --manifest NAME --workspace DIR",
        )


def is_script_of(layout: Layout, lock: Lock) -> bool:
    """Whether `activate` is what this npu-rl writes for the lock: the hash in the receipt can be forged."""
    from npu_rl.workspace.materialise import activate_script

    script = activate_script(lock.env).encode()
    try:
        return layout.inside.read(layout.root / "activate", len(script)) == script
    except OSError:
        return False
