"""The receipt: what was laid into a workspace, enough to prove it later without any git repository."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from npu_rl.errors import WorkspaceError
from npu_rl.manifest import lock as lock_file
from npu_rl.manifest.lock import Lock
from npu_rl.workspace.layout import Layout

RECEIPT_FORMAT = 1
_HEAD = '{"digest":"'
_DIGEST_END = len(_HEAD) + 64


@dataclass(frozen=True)
class Receipt:
    """files: root ("code", "src/NAME") → path → (mode, blob id). trees: root → tree id.
    hunks: records for verify. texts: patch SHA-256 → text. setup: how it was made (for people).
    digest: SHA-256 of the text it was read from, after the digest itself; empty for one that was not read."""

    files: dict[str, dict[str, tuple[str, str]]]
    trees: dict[str, str]
    commits: dict[str, str]
    hunks: list[dict[str, Any]]
    texts: dict[str, str]
    setup: dict[str, Any]
    digest: str = ""

    def dump(self) -> str:
        """As JSON text. The digest stands first, so that reading checks it without dumping again."""
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
    """The digest that stands in the text of a receipt."""
    return text[len(_HEAD) : _DIGEST_END]


def read_receipt(layout: Layout) -> Receipt:
    """Raises WorkspaceError if it is damaged or newer."""
    again = "Set the workspace up again: npu-rl setup"
    try:
        text = layout.receipt.read_text(encoding="utf-8")
        body = json.loads(text)
        if body["receipt_format"] != RECEIPT_FORMAT:
            raise WorkspaceError(
                "The workspace was made by another version of npu-rl", where=str(layout.receipt), hint=again
            )
        if not text.startswith(_HEAD) or digest_of(text) != _sha256(text[_DIGEST_END:]):
            raise WorkspaceError(
                "The receipt was changed by hand or damaged", where=str(layout.receipt), hint=again
            )
        return Receipt(
            files={root: {p: (m, i) for p, m, i in files} for root, files in body["files"].items()},
            trees=body["trees"],
            commits=body["commits"],
            hunks=body["hunks"],
            texts=body["texts"],
            setup=body["setup"],
            digest=digest_of(text),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkspaceError(
            "The receipt can't be read", where=str(layout.receipt), why=str(error), hint=again
        ) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_lock(layout: Layout) -> Lock:
    """The lock the workspace was set up from. Raises LockError."""
    return lock_file.read(layout.lock)
