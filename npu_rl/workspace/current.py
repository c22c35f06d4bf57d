"""Is there anything to do? Asked first by every setup, so it imports no more than the answer needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.errors import WorkspaceError
from npu_rl.workspace import check, swap
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.receipt import read_receipt


@dataclass
class Outcome:
    """What a setup did, for people and as the documented JSON."""

    changed: bool
    kept: Path | None = None
    received: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def untouched(layout: Layout, text: str, python: str | None = None) -> bool:
    """Whether a setup from the lock `text` has nothing to do, not even to clean up."""
    return not swap.leftovers(layout) and up_to_date(layout, text, python)


def up_to_date(layout: Layout, text: str, python: str | None = None) -> bool:
    """Whether the workspace is from exactly this lock and untouched since.

    python: the training interpreter that was asked for; None is whichever the receipt names.
    """
    if layout.journal.exists() or not layout.is_workspace or not (layout.root / "activate").is_file():
        return False
    try:
        if layout.lock.read_text(encoding="utf-8") != text:
            return False
        receipt = read_receipt(layout)
    except (WorkspaceError, OSError):
        return False  # damaged, or another setup is putting it in place: look again with the workspace held
    if python is not None and receipt.setup.get("python") != python:
        return False
    known = check.read_stats(layout.stat, receipt.digest)
    for root, expected in receipt.files.items():
        if not (layout.root / root / ".git").exists():
            return False
        if check.examine_root(layout.root, root, expected, known.get(root, {})).drift:
            return False
    return True
