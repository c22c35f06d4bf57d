"""Local changes as a patch against the locked tree, new files included."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.file_origin import origins_comment
from npu_rl.workspace.verification.verify import Drift, Report, verify

if TYPE_CHECKING:
    from npu_rl.stack.sources.progress import Notify

_LARGEST = 64 << 20  # bytes of a file in a patch, which is made in memory


def local_changes(paths: WorkspacePaths, notify: Notify) -> Iterator[bytes]:
    """Yield a patch in git's format for each root with changes. Raises WorkspaceError without the git folder.

    `notify` gets the changes that a patch can't express (a root that was replaced, a git repository in it, the files
    that setup creates besides the trees), and untracked files that are not drift or not for a patch.
    """
    yield from patches_of(paths, fit_for_patch(paths, verify(paths, notify), notify), notify)


def patches_of(
    paths: WorkspacePaths, report: Report, notify: Notify, *, only: Container[str] | None = None
) -> Iterator[bytes]:
    """Yield the patches of a verified workspace, like `local_changes`.

    Args:
        only: The paths to show; by default all.
    """
    changed: dict[str, set[str]] = {}
    for drift in report.drift:
        place = place_in_tree(drift, report)
        if place is None or (only is not None and drift.path not in only):
            notify(f"not shown: {drift.path} ({drift.kind})")
        else:
            changed.setdefault(place[0], set()).add(place[1])
    for path, what in list(report.ignored.items())[:20]:
        notify(f"not shown: {path} ({what})")
    if len(report.ignored) > 20:
        notify(f"not shown: and {len(report.ignored) - 20} more ignored files")
    for root, files in changed.items():
        if root == "code":
            yield origins_comment(report.lock, files)
        yield patch_of(paths, root, report.receipt.trees[root], sorted(files))


def fit_for_patch(paths: WorkspacePaths, report: Report, notify: Notify) -> Report:
    """Remove large files, such as checkpoints, and this process's own output from a report."""
    try:
        output = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed
        output = None

    def why_not(drift: Drift) -> str | None:
        try:
            status = (paths.root / drift.path).lstat()
        except OSError:
            return None
        if drift.kind == "untracked" and output is not None and os.path.samestat(status, output):
            return "the output of this command"
        return f"{drift.kind}, {status.st_size >> 20} MiB" if status.st_size > _LARGEST else None

    # A path has a line for each lost hunk, too.
    reasons = {drift.path: why_not(drift) for drift in report.drift}
    for path, reason in reasons.items():
        if reason is not None:
            notify(f"not shown: {path} ({reason})")
    kept = [drift for drift in report.drift if reasons[drift.path] is None]
    return replace(report, drift=kept)


def place_in_tree(drift: Drift, report: Report) -> tuple[str, str] | None:
    """Return the root and the path in it if a patch can represent the drift, else None."""
    root = next((root for root in report.receipt.trees if drift.path.startswith(f"{root}/")), None)
    if root is None:
        return None
    path = drift.path[len(root) + 1 :]
    return (root, path) if path and not path.endswith("/") and path != ".git" else None


def patch_of(paths: WorkspacePaths, root: str, tree: str, files: list[str]) -> bytes:
    """Return the differences between files of a root and its tree. Raises WorkspaceError without the git folder."""
    objects = git_objects(paths)
    # A temporary repository: the user's index stays unchanged, and their settings and filters have no effect.
    # It is outside the workspace, which may be read-only.
    with tempfile.TemporaryDirectory(prefix="npu-rl-diff-") as folder:
        repository = Path(folder, "git")
        init_bare(repository, bare=False)
        repository_view = Git(repository, work_tree=paths.root / root, alternates=(objects,))
        repository_view.run("read-tree", tree)
        content = [p for p in files if _has_content(paths.root / root, p)]
        repository_view.run(
            "update-index", "--force-remove", "-z", "--stdin", input=_names(set(files) - set(content))
        )
        repository_view.run("update-index", "--add", "-z", "--stdin", input=_names(content))
        return repository_view.run(
            "diff-index", "--cached", "-p", "--binary", "--no-renames", "--no-ext-diff", tree
        ).stdout


def git_objects(paths: WorkspacePaths) -> Path:
    """Return the folder of a workspace's git objects. Raises WorkspaceError if it is missing."""
    objects = paths.git / "objects"
    if objects.is_dir():
        return objects
    raise WorkspaceError(
        "This copy of the workspace has no git objects to compare with",
        where=str(objects),
        hint="`npu-rl verify` works without them.",
    )


def _has_content(root: Path, name: str) -> bool:
    """Return whether git can store a path.

    A folder, a pipe or a device in place of a file counts as removed, and so does a path through a link.
    """
    try:
        mode = (root / name).lstat().st_mode
    except OSError:
        return False
    through_link = any((root / folder).is_symlink() for folder in Path(name).parents)
    return not through_link and (stat.S_ISREG(mode) or stat.S_ISLNK(mode))


def _names(paths: Iterable[str]) -> bytes:
    return b"".join(p.encode("utf-8", "surrogateescape") + b"\0" for p in sorted(paths))
