"""Local changes as a patch: what `git diff` says against the locked tree, new files included."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from npu_rl.errors import WorkspaceError
from npu_rl.git import Git, init_bare
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.verify import Tell, verify


def local_changes(layout: Layout, tell: Tell) -> Iterator[bytes]:
    """A patch per root that has changes, in git's format. Raises WorkspaceError without the git folder.

    A root that was replaced as a whole, or a git repository laid into it, has no such form:
    `tell` hears of it, and of untracked files that are no drift.
    """
    report = verify(layout, tell)
    changed: dict[str, set[str]] = {}
    for drift in report.drift:
        root = _root(drift.path, report.receipt.trees)
        path = drift.path[len(root) + 1 :]
        if not path or path.endswith("/"):
            tell(f"not shown: {drift.path} ({drift.kind})")
        else:
            changed.setdefault(root, set()).add(path)
    for product in report.products[:20]:
        tell(f"not shown: {product} (untracked)")
    if len(report.products) > 20:
        tell(f"not shown: {len(report.products) - 20} more untracked files")
    for root, paths in changed.items():
        yield _patch(layout, root, report.receipt.trees[root], sorted(paths))


def _root(path: str, roots: dict[str, str]) -> str:
    return next(root for root in roots if path == root or path.startswith(root + "/"))


def _patch(layout: Layout, root: str, tree: str, paths: list[str]) -> bytes:
    objects = layout.git / "objects"
    if not objects.is_dir():
        raise WorkspaceError(
            "This copy of the workspace has no git folder, so there is nothing to compare lines with",
            where=str(objects),
            hint="npu-rl verify works without it.",
        )
    # A repository of our own: the user's index, with whatever they staged, stays as it is, and no
    # setting or filter of theirs changes what is shown. Elsewhere: the workspace may be read-only.
    with tempfile.TemporaryDirectory(prefix="npu-rl-diff-") as folder:
        repository = Path(folder, "git")
        init_bare(repository, bare=False)
        here = Git(repository, work_tree=layout.root / root, alternates=(objects,))
        here.run("read-tree", tree)
        content = [p for p in paths if _has_content(layout.root / root / p)]
        here.run("update-index", "--force-remove", "-z", "--stdin", input=_names(set(paths) - set(content)))
        here.run("update-index", "--add", "-z", "--stdin", input=_names(content))
        return here.run(
            "diff-index", "--cached", "-p", "--binary", "--no-renames", "--no-ext-diff", tree
        ).stdout


def _has_content(path: Path) -> bool:
    """Whether git can hold it: a folder, a pipe or a device in place of a file counts as its removal."""
    return path.is_symlink() or path.is_file()


def _names(paths: Iterable[str]) -> bytes:
    return b"".join(p.encode("utf-8", "surrogateescape") + b"\0" for p in sorted(paths))
