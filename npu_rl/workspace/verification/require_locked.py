"""Refusal of workspaces that differ from their lock, for commands that run the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder.receipt import diff_command, setup_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import Progress, Report, verify

if TYPE_CHECKING:
    from npu_rl.stack.sources.progress import Notify

_SHOWN = 8


def require_locked(
    paths: WorkspacePaths, notify: Notify, consequence: str, progress: Progress | None
) -> None:
    """Verify the workspace like `verify`. Raises WorkspaceError if it differs from its lock.

    Args:
        consequence: What would be wrong if its code ran all the same.
    """
    report = verify(paths, notify, progress=progress)
    if not report.ok:
        raise drift_error(paths, report, consequence)


def drift_error(
    paths: WorkspacePaths, report: Report, consequence: str, more_hint: str = ""
) -> WorkspaceError:
    """Return the error that lists the differences of a workspace from its lock.

    Args:
        more_hint: A further way out, on a line of its own.
    """
    shown = [f"{drift.kind:<10} {drift.path}" for drift in report.drift[:_SHOWN]]
    more = len(report.drift) - len(shown)
    aside = setup_hint(paths, report.receipt.setup, "--discard")
    hint = f"`{diff_command(paths)}` shows the changes. To put them aside: {aside}"
    return WorkspaceError(
        f"The workspace does not equal its lock, so {consequence}",
        where=str(paths.root),
        why="\n".join([*shown, *([f"and {more} more"] if more else [])]),
        hint="\n".join(filter(None, (hint, more_hint))),
    )
