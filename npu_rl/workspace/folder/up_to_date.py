"""Check whether a setup has anything to do. Every setup runs this first, so it has few imports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.lock.lock_model import MAXIMUM_SIZE
from npu_rl.workspace.folder import file_check, laid_files, swap
from npu_rl.workspace.folder.laid_files import examine_laid_root
from npu_rl.workspace.folder.receipt import Receipt, read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@dataclass
class Outcome:
    """The result of a setup."""

    changed: bool
    kept: Path | None = None
    received: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def untouched(paths: WorkspacePaths, text: str, python: str | None = None) -> bool:
    """Return whether a setup from the lock `text` has nothing to do, including cleanup."""
    return not swap.leftovers(paths) and up_to_date(paths, text, python)


def up_to_date(paths: WorkspacePaths, text: str, python: str | None = None) -> bool:
    """Return whether the workspace was set up from exactly this lock and is unchanged.

    Args:
        python: The requested training interpreter; None accepts whatever the receipt has.
    """
    if paths.is_swapping or not paths.is_workspace:
        return False
    try:
        if read_if_file(paths.lock, MAXIMUM_SIZE) != text.encode():
            return False
        receipt = read_receipt(paths)
    except (WorkspaceError, OSError):
        return False  # damaged, or another setup is putting it in place: look again with the workspace held
    if python is not None and receipt.setup.get("python") != python:
        return False
    try:
        return _is_as_laid(paths, receipt)
    except FileNotFoundError:
        return False  # another setup takes it away


def _is_as_laid(paths: WorkspacePaths, receipt: Receipt) -> bool:
    known = file_check.read_stats(paths.stat, receipt.digest)
    around = laid_files.check_laid_files(
        paths.root, receipt.files, receipt.setup, known.get(laid_files.PACKS, {}), without_git=False
    )
    if around.drift:
        return False
    laid = (examine_laid_root(paths.root, root, receipt, known.get(root, {}))[0] for root in receipt.files)
    return not any(found.drift for found in laid)
