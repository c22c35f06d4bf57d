"""The receipt: what was laid into a workspace, enough to prove it later without any git repository."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from npu_rl.errors import WorkspaceError
from npu_rl.manifest import lock as lock_file
from npu_rl.manifest.lock import Lock
from npu_rl.workspace.layout import Layout

RECEIPT_FORMAT = 1


@dataclass(frozen=True)
class Receipt:
    """files: root ("code", "src/NAME") → path → (mode, blob id). trees: root → tree id.
    hunks: records for verify. texts: patch SHA-256 → text. setup: how it was made (for people)."""

    files: dict[str, dict[str, tuple[str, str]]]
    trees: dict[str, str]
    commits: dict[str, str]
    hunks: list[dict[str, Any]]
    texts: dict[str, str]
    setup: dict[str, Any]

    def dump(self) -> str:
        body = {
            "receipt_format": RECEIPT_FORMAT,
            "setup": self.setup,
            "trees": self.trees,
            "commits": self.commits,
            "files": {root: [[p, m, i] for p, (m, i) in files.items()] for root, files in self.files.items()},
            "hunks": self.hunks,
            "texts": self.texts,
        }
        return json.dumps(body, separators=(",", ":")) + "\n"


def read_receipt(layout: Layout) -> Receipt:
    """Raises WorkspaceError if it is damaged or newer."""
    broken = "Set the workspace up again: npu-rl setup"
    try:
        body = json.loads(layout.receipt.read_text(encoding="utf-8"))
        if body["receipt_format"] != RECEIPT_FORMAT:
            raise WorkspaceError(
                "The workspace was made by another version of npu-rl", where=str(layout.receipt), hint=broken
            )
        return Receipt(
            files={root: {p: (m, i) for p, m, i in files} for root, files in body["files"].items()},
            trees=body["trees"],
            commits=body["commits"],
            hunks=body["hunks"],
            texts=body["texts"],
            setup=body["setup"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkspaceError(
            "The receipt can't be read", where=str(layout.receipt), why=str(error), hint=broken
        ) from error


def read_lock(layout: Layout) -> Lock:
    """The lock the workspace was set up from. Raises LockError."""
    return lock_file.read(layout.lock)
