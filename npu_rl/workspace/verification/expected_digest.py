"""Comparison of a workspace with an expected digest or environment id from outside the workspace."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import UsageError, WorkspaceError
from npu_rl.common.printable import one_line
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.folder.built_products import built_products
from npu_rl.workspace.folder.laid_files import activate_script
from npu_rl.workspace.folder.receipt import Receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_DIGEST = re.compile(r"(env:)?[0-9a-f]{64}")


@dataclass(frozen=True)
class Expected:
    """The value of `--expect`.

    Attributes:
        lock: The digest of the lock; None if none is named.
        environment: The id of the environment, `env:` and its digits; None if none is named.
    """

    lock: str | None = None
    environment: str | None = None


def parse_expected(texts: Sequence[str]) -> Expected | None:
    """Parse the values of `--expect`. Returns None without values.

    A tree or commit id is not enough: neither covers the environment, the sources or the requirements of a
    lock.

    Raises:
        UsageError: If one is neither a digest nor an environment id, or there are two of a kind.
    """
    if not texts:
        return None
    for text in texts:
        if not _DIGEST.fullmatch(text):
            raise _invalid(text)
    locks = [text for text in texts if not text.startswith("env:")]
    environments = [text for text in texts if text.startswith("env:")]
    for found, what in ((locks, "lock digests"), (environments, "environment ids")):
        if len(set(found)) > 1:
            raise UsageError(
                f"Two {what} are expected", where="--expect", hint="Pass at most one of each kind."
            )
    return Expected(*(next(iter(found), None) for found in (locks, environments)))


def _invalid(text: str) -> UsageError:
    if text.startswith("env:"):
        return UsageError(
            f"Invalid environment id {text!r}",
            where="--expect",
            why="An environment id is env: and 64 digits, 0-9 and a-f.",
            hint="`npu-rl status` prints it, and run.json of each run has it.",
        )
    return UsageError(
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


def require_covered_products(paths: WorkspacePaths, receipt: Receipt, expected: Expected) -> None:
    """Raise WorkspaceError for build products that the expected values don't cover, since a receipt can be forged."""
    products = built_products(receipt.setup)
    if products and expected.environment is None:
        more = f" and {len(products) - 1} more" if len(products) > 1 else ""
        raise WorkspaceError(
            "The workspace has products of builds, which a lock's digest does not cover",
            where=str(paths.root),
            why=f"{one_line(next(iter(products)))}{more}: only the receipt lists them.",
            hint="Expect the environment as well, --expect env:HEX: `npu-rl status` prints it where they were built.",
        )


def is_expected_script(paths: WorkspacePaths, lock: Lock) -> bool:
    """Return whether `activate` equals this npu-rl's output for the lock, since the receipt's hash can be forged."""
    script = activate_script(lock.env).encode()
    return read_if_file(paths.root / "activate", len(script)) == script
