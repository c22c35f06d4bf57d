"""Replay of recorded merges, path by path.

Replaying records instead of calling `git merge` gives one result with every git from 2.34 on
(`read-tree -m` and `apply --3way` differ from merge-tree on renames) and needs no history.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from npu_rl.common.errors import ComposeError
from npu_rl.stack.compose.git_trees import Draft, Trees
from npu_rl.stack.git.objects import Entry
from npu_rl.stack.lock.lock_fields import Allowance, MiB
from npu_rl.stack.lock.lock_model import Record


def merge_file(trees: Trees, base: str, ours: str, theirs: str) -> tuple[bytes, bool]:
    """Run `git merge-file` on three blobs; return the merged bytes, and whether there were no conflicts."""
    with tempfile.TemporaryDirectory(prefix="merge-", dir=trees.repository.git_dir) as folder:
        paths = []
        for name, oid in (("ours", ours), ("base", base), ("theirs", theirs)):
            path = Path(folder, name)
            path.write_bytes(trees.blob(oid))
            paths.append(str(path))
        # Its exit status is the number of conflicts (at most 127), 255 for an error such as binary content.
        done = trees.repository.run("merge-file", "-p", "-q", *paths, ok=range(256))
    return done.stdout, done.code == 0


def content_allowance() -> Allowance:
    """Return the limit on the merged content of one lock."""
    return Allowance(each=64 * MiB, total=512 * MiB)


def replay(
    trees: Trees, tree: str, records: Iterable[Record], what: str, allowance: Allowance | None = None
) -> str:
    """Return the tree after a recorded merge.

    Args:
        allowance: The rest of `content_allowance()`, which the merges of a lock share.

    Raises:
        ComposeError: If a record does not give its result.
    """
    allowance = allowance or content_allowance()
    draft = Draft(trees, tree)
    for record in records:
        if record.id is None or record.mode is None:
            draft.put(record.path, None)
            continue
        _write_merged_blob(trees, record, what, allowance)
        draft.put(record.path, Entry(record.mode, record.id))
    return draft.write()


def _write_merged_blob(trees: Trees, record: Record, what: str, allowance: Allowance) -> None:
    """Write the merged blob, unless it is upstream's own or already exists."""
    clean = True
    if record.three_way:
        merged, clean = merge_file(trees, *record.three_way)
    elif record.content is not None:
        merged = _unpack_content(record.path, record.content, what, allowance)
    else:
        return
    oid = trees.write_object("blob", merged)
    if not clean or oid != record.id:
        raise ComposeError(
            f"{what}: merging {record.path} does not give the locked result",
            why=f"Expected {record.id}, found {oid}.",
            hint="Please report this as a bug, with your git version; running `npu-rl lock` there may show the cause.",
        )


def _unpack_content(path: str, text: str, what: str, allowance: Allowance) -> bytes:
    try:
        return allowance.unpack(text)
    except ValueError as error:
        raise ComposeError(
            f"{what}: the record of {path} is damaged",
            why=str(error),
            hint="Restore the lock from version control, or make a new one: npu-rl lock --manifest M",
        ) from error
