"""The receipt of a workspace: its files and hunks, with which it can be verified without a git repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.bounded import parse_json
from npu_rl.errors import LockError, WorkspaceError
from npu_rl.lock import lock_model
from npu_rl.lock.lock_model import Lock
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.receipt_schema import check_receipt

RECEIPT_FORMAT = 1
MAXIMUM_SIZE = 256 * 1024 * 1024  # 2,644 files take 0.4 MB
_HEAD = '{"digest":"'
_DIGEST_END = len(_HEAD) + 64


@dataclass(frozen=True)
class Receipt:
    """The receipt of a workspace.

    Attributes:
        files: Mode and blob id by path, by root ("code", "src/NAME").
        trees: Tree id by root.
        commits: Commit id by root.
        hunks: Hunk records for verify.
        texts: Patch texts by SHA-256.
        setup: How the workspace was set up; `lock` is the lock's digest, which receipts made before 0.2 lack.
        digest: SHA-256 of the text it was read from, without the digest itself; empty if it was not read.
    """

    files: dict[str, dict[str, tuple[str, str]]]
    trees: dict[str, str]
    commits: dict[str, str]
    hunks: list[dict[str, Any]]
    texts: dict[str, str]
    setup: dict[str, Any]
    digest: str = ""

    def dump(self) -> str:
        """Return the receipt as JSON text, beginning with the digest of the rest."""
        body = {
            "receipt_format": RECEIPT_FORMAT,
            "setup": self.setup,
            "trees": self.trees,
            "commits": self.commits,
            "files": {root: [[p, m, i] for p, (m, i) in files.items()] for root, files in self.files.items()},
            "hunks": self.hunks,
            "texts": self.texts,
        }
        rest = '",' + json.dumps(body, separators=(",", ":"))[1:] + "\n"
        return _HEAD + hashlib.sha256(rest.encode()).hexdigest() + rest


def digest_of(text: str) -> str:
    """Return the digest in the text of a receipt."""
    return text[len(_HEAD) : _DIGEST_END]


def bundled_manifest(setup: Mapping[str, Any]) -> str | None:
    """Return the name of the bundled manifest that a receipt names in `setup`; None for any other.

    A path from a receipt is not repeated in a command line that the user may copy: a manifest is trusted, and whoever
    wrote the workspace chose the path.
    """
    from npu_rl.bundled import bundled_manifests

    named = Path(str(setup.get("manifest", "")))
    return named.stem if bundled_manifests().get(named.stem) == named else None


def read_receipt(layout: Layout) -> Receipt:
    """Read the receipt. Raises WorkspaceError if it is damaged, of another format, or does not follow its schema."""
    again = "Set the workspace up again: npu-rl setup --manifest NAME --workspace DIR"
    try:
        text = layout.inside.read(layout.receipt, MAXIMUM_SIZE).decode("utf-8")
        body = parse_json(text)
        if body["receipt_format"] != RECEIPT_FORMAT:
            raise WorkspaceError(
                "The workspace has a receipt of another format", where=str(layout.receipt), hint=again
            )
        if not text.startswith(_HEAD) or digest_of(text) != _sha256(text[_DIGEST_END:]):
            raise WorkspaceError(
                "The receipt was edited by hand or damaged", where=str(layout.receipt), hint=again
            )
        files = {root: {p: (m, i) for p, m, i in listing} for root, listing in body["files"].items()}
        if sum(map(len, files.values())) != sum(map(len, body["files"].values())):
            raise ValueError("a path is listed twice")
        check_receipt(body, files)
        return Receipt(
            files=files,
            trees=body["trees"],
            commits=body["commits"],
            hunks=body["hunks"],
            texts=body["texts"],
            setup=body["setup"],
            digest=digest_of(text),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkspaceError(
            "The receipt can't be read", where=str(layout.receipt), why=_reason(error), hint=again
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_lock(layout: Layout) -> tuple[Lock, str]:
    """Read the lock the workspace was set up from, with its digest. Raises LockError."""
    where = str(layout.lock)
    try:
        text = layout.inside.read(layout.lock, lock_model.MAXIMUM_SIZE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(
            "The workspace's lock can't be read", where=where, why=_reason(error),
            hint="Set the workspace up again: npu-rl setup --manifest NAME --workspace DIR",
        ) from error  # fmt: skip
    return lock_model.parse_with_digest(text, where)
