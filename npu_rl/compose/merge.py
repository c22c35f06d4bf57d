"""Merges: replayed at set-up path by path, exactly as `lock` recorded them.

Replaying records instead of calling `git merge` gives one result with every git from 2.34 on
(`read-tree -m` and `apply --3way` differ from merge-tree on renames) and needs no history.
"""

from __future__ import annotations

import base64
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from npu_rl.compose.trees import Trees
from npu_rl.errors import ComposeError
from npu_rl.manifest.lock import Record
from npu_rl.objects import Entry


def merge_file(trees: Trees, base: str, ours: str, theirs: str) -> tuple[bytes, bool]:
    """`git merge-file` on three blobs: the merged bytes, and whether it was free of conflicts."""
    with tempfile.TemporaryDirectory(prefix="merge-", dir=trees.repository.git_dir) as folder:
        paths = []
        for name, oid in (("ours", ours), ("base", base), ("theirs", theirs)):
            path = Path(folder, name)
            path.write_bytes(trees.blob(oid))
            paths.append(str(path))
        # Its exit status is the number of conflicts (at most 127), 255 for an error such as binary content.
        done = trees.repository.run("merge-file", "-p", "-q", *paths, ok=range(256))
    return done.stdout, done.code == 0


def replay(trees: Trees, tree: str, records: Iterable[Record], what: str) -> str:
    """The tree after a recorded merge. Raises ComposeError if a record doesn't give its result."""
    for record in records:
        if record.id is None or record.mode is None:
            tree = trees.put(tree, record.path, None)
            continue
        _make(trees, record, what)
        tree = trees.put(tree, record.path, Entry(record.mode, record.id))
    return tree


def _make(trees: Trees, record: Record, what: str) -> None:
    """Write the merged blob, unless the record names one that is there."""
    clean = True
    if record.three_way:
        merged, clean = merge_file(trees, *record.three_way)
    elif record.content is not None:
        merged = unpack(record.content)
    else:
        return
    oid = trees.write_object("blob", merged)
    if not clean or oid != record.id:
        raise ComposeError(
            f"{what}: merging {record.path} does not give what the lock says",
            why=f"Expected {record.id}, found {oid}.",
            hint="Report this with your git version; `npu-rl lock` there may show the cause.",
        )


def pack(data: bytes) -> str:
    """A merged file as text for a record."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    """The inverse of `pack`. Raises ComposeError for text that is none."""
    try:
        return zlib.decompress(base64.b64decode(text))
    except (ValueError, zlib.error) as error:
        raise ComposeError("A merge record of the lock is damaged", why=str(error)) from error
