"""Local changes as a patch: what `git diff` says against the locked tree, new files included."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from npu_rl.errors import WorkspaceError
from npu_rl.git import Git
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.receipt import read_receipt
from npu_rl.workspace.verify import verify


def local_changes(layout: Layout) -> Iterator[bytes]:
    """A patch per root that has changes, in git's format. Raises WorkspaceError without the git folder."""
    receipt = read_receipt(layout)
    changed: dict[str, list[str]] = {}
    for drift in verify(layout).drift:
        root = next(r for r in receipt.files if drift.path.startswith(r + "/"))
        changed.setdefault(root, []).append(drift.path[len(root) + 1 :].rstrip("/"))
    for root, paths in changed.items():
        yield _patch(layout, root, receipt.trees[root], sorted(set(paths)))


def _patch(layout: Layout, root: str, tree: str, paths: list[str]) -> bytes:
    repository = layout.git / root.replace("/", "-")
    if not (repository / "HEAD").is_file():
        raise WorkspaceError(
            "This copy of the workspace has no git folder, so there is nothing to compare lines with",
            where=str(repository),
            hint="npu-rl verify works without it.",
        )
    # An index of our own: the user's, with whatever they staged, stays as it is.
    index = layout.hidden / f".diff-{secrets.token_hex(6)}"
    here = Git(repository, work_tree=layout.root / root, index=index)
    try:
        here.run("read-tree", tree)
        here.run("update-index", "-q", "--refresh", ok=(0, 1))
        names = b"\0".join(p.encode("utf-8", "surrogateescape") for p in paths) + b"\0"
        here.run("update-index", "--add", "--remove", "-z", "--stdin", input=names)
        return here.run(
            "diff-index", "--cached", "-p", "--binary", "--no-renames", "--no-ext-diff", tree
        ).stdout
    finally:
        index.unlink(missing_ok=True)
