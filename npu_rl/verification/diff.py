"""Local changes as a patch: what `git diff` says against the locked tree, new files included."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from npu_rl.errors import WorkspaceError
from npu_rl.git.command import Git, init_bare
from npu_rl.verification.file_origin import origins_comment
from npu_rl.verification.verify import Drift, Notify, Report, verify
from npu_rl.workspace.confined_changes import Confined, LinkOnTheWay
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.local_commits import unsupported_file


def local_changes(layout: Layout, notify: Notify) -> Iterator[bytes]:
    """A patch per root that has changes, in git's format. Raises WorkspaceError without the git folder.

    A root that was replaced as a whole, a git repository laid into it, and what setup lays around the trees have no
    such form: `tell` hears of them, and of untracked files that are no drift.
    """
    yield from patches_of(layout, verify(layout, notify), notify)


def patches_of(
    layout: Layout, report: Report, notify: Notify, *, only: Container[str] | None = None
) -> Iterator[bytes]:
    """`local_changes` of a workspace that was looked at. only: the drift's paths to show; by default all."""
    changed: dict[str, set[str]] = {}
    for drift in report.drift:
        place = place_in_tree(drift, report)
        if place is None or (only is not None and drift.path not in only):
            notify(f"not shown: {drift.path} ({drift.kind})")
        else:
            changed.setdefault(place[0], set()).add(place[1])
    for product in report.products[:20]:
        notify(f"not shown: {product} (untracked)")
    if len(report.products) > 20:
        notify(f"not shown: and {len(report.products) - 20} more untracked files")
    for root, paths in changed.items():
        if root == "code":
            yield origins_comment(report.lock, paths)
        yield patch_of(layout, root, report.receipt.trees[root], sorted(paths))


def place_in_tree(drift: Drift, report: Report) -> tuple[str, str] | None:
    """The root and the path in it, if a patch can show the drift."""
    root = next((root for root in report.receipt.trees if drift.path.startswith(f"{root}/")), None)
    if root is None:
        return None
    path = drift.path[len(root) + 1 :]
    return (root, path) if path and not path.endswith("/") and path != ".git" else None


def patch_of(layout: Layout, root: str, tree: str, paths: list[str]) -> bytes:
    """What differs at some paths of a root, against its tree. Raises WorkspaceError without the git folder."""
    objects = layout.git / "objects"
    if not objects.is_dir():
        raise WorkspaceError(
            "This copy of the workspace has no git objects to compare with",
            where=str(objects),
            hint="`npu-rl verify` works without them.",
        )
    problem = unsupported_file(objects) or (
        "it uses the objects of another repository" if (objects / "info/alternates").exists() else None
    )
    if problem is not None:
        raise WorkspaceError(
            "The git objects of this workspace can't be used", where=str(objects), why=problem,
            hint="`npu-rl verify` works without them.",
        )  # fmt: skip
    # A repository of our own: the user's index, with whatever they staged, stays as it is, and no
    # setting or filter of theirs changes what is shown. Elsewhere: the workspace may be read-only.
    with tempfile.TemporaryDirectory(prefix="npu-rl-diff-") as folder:
        repository = Path(folder, "git")
        init_bare(repository, bare=False)
        repository_view = Git(repository, work_tree=layout.root / root, alternates=(objects,))
        repository_view.run("read-tree", tree)
        content = [p for p in paths if _has_content(layout.inside, layout.root / root / p)]
        repository_view.run(
            "update-index", "--force-remove", "-z", "--stdin", input=_names(set(paths) - set(content))
        )
        repository_view.run("update-index", "--add", "-z", "--stdin", input=_names(content))
        return repository_view.run(
            "diff-index", "--cached", "-p", "--binary", "--no-renames", "--no-ext-diff", tree
        ).stdout


def _has_content(inside: Confined, path: Path) -> bool:
    """Whether git can hold it: a folder, a pipe or a device in place of a file counts as its removal, and so does what
    only a link on the way leads to."""
    try:
        status = inside.status(path)
    except LinkOnTheWay:
        return False
    return status is not None and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode))


def _names(paths: Iterable[str]) -> bytes:
    return b"".join(p.encode("utf-8", "surrogateescape") + b"\0" for p in sorted(paths))
