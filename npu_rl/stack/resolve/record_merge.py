"""Recording of a merge: `git merge-tree` computes it once; every setup replays the records path by path."""

from __future__ import annotations

from functools import cached_property
from itertools import product, takewhile

from npu_rl.common.errors import LockError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.replay_merge import merge_file, replay
from npu_rl.stack.git.command import MERGE_TREE_VERSION, require_git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import EXECUTABLE, FILE, Entry, format_commit, object_id
from npu_rl.stack.lock.lock_fields import pack_bytes
from npu_rl.stack.lock.lock_model import Record
from npu_rl.stack.resolve.merge_conflict import MergeConflict, conflicting_lines

_AUTHOR = "npu-rl <npu-rl@invalid>"
_RENAME_LIMIT = "-l7000"  # as merge-tree has it


def merge_trees(trees: Trees, base: str, ours: str, theirs: str, what: str) -> str:
    """Merge taken trees with a three-way merge.

    The parents are synthetic, so that the merge base is the one given and no history is needed.

    Raises:
        MergeConflict: The merge has conflicts, which it lists.
    """
    require_git(MERGE_TREE_VERSION, "compute merges for a lock (git merge-tree --write-tree)")

    def commit(tree: str, parents: list[str]) -> str:
        return trees.write_object("commit", format_commit(tree, parents, _AUTHOR, 0, "side\n"))

    root = commit(base, [])
    # Both parents have the same message: equal trees give one commit, which is correct.
    left, right = commit(ours, [root]), commit(theirs, [root])
    try:
        done = trees.repository.run(
            "merge-tree", "--write-tree", "-z", "--name-only", "--messages", left, right, ok=(0, 1)
        )
    except GitError as error:
        raise LockError(f"{what}: git merge-tree failed", why=error.stderr) from error
    fields = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    if done.code == 1:
        files = list(takewhile(bool, fields[1:]))
        conflicts = [
            message.strip() for message in fields if message.startswith("CONFLICT") and "\n" in message
        ]
        marked = {path: trees.find(fields[0].strip(), path) for path in files}
        places = {
            path: conflicting_lines(trees.blob(entry.oid))
            if entry and entry.mode in (FILE, EXECUTABLE)
            else ()
            for path, entry in marked.items()
        }
        raise MergeConflict(what, conflicts or files, places)
    return fields[0].strip()


def record(trees: Trees, base: str, ours: str, theirs: str, result: str, what: str) -> tuple[Record, ...]:
    """Return the records that turn `ours` into `result`, after replaying them as a check. Raises LockError."""
    known = {e.oid for side in (base, ours, theirs) for _, e in trees.files(side)}
    other_names = _Renames(trees, base, ours, theirs)
    records = []
    for path, _, after in trees.changed(ours, result):
        if after is None:
            records.append(Record(path, None, None))
        elif after.oid in known:
            records.append(Record(path, after.mode, after.oid))
        else:
            records.append(_merged(trees, (base, ours, theirs), path, after, other_names))
    if replay(trees, ours, records, what) != result:
        raise LockError(
            f"{what}: replaying the merge gives a different tree", hint="Please report this as a bug."
        )
    return tuple(records)


def _merged(
    trees: Trees, sides: tuple[str, str, str], path: str, after: Entry, other_names: _Renames
) -> Record:
    """Return a record with three blobs that merge to the result, across renames, or with the result itself."""
    names = [path, *other_names.of(path)]
    candidates = []
    for side in sides:
        entries = (trees.find(side, name) for name in names)
        candidates.append([e.oid for e in entries if e is not None and not e.is_tree])
    for base, ours, theirs in product(*candidates):
        merged, clean = merge_file(trees, base, ours, theirs)
        if clean and object_id("blob", merged) == after.oid:
            return Record(path, after.mode, after.oid, three_way=(base, ours, theirs))
    return Record(path, after.mode, after.oid, content=pack_bytes(trees.blob(after.oid)))


class _Renames:
    """Renames of the files of a merge, on either side; computed on first use."""

    def __init__(self, trees: Trees, base: str, *sides: str) -> None:
        self._trees, self._base, self._sides = trees, base, sides

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        command = ("diff-tree", "-r", "-z", "-M", _RENAME_LIMIT, "--diff-filter=R", "--name-status")
        pairs: list[tuple[str, str]] = []
        for side in self._sides:
            fields = self._trees.repository.lines(*command, self._base, side)
            names = [f.decode("utf-8", "surrogateescape") for f in fields]
            pairs += zip(names[1::3], names[2::3], strict=True)
        return pairs

    def of(self, path: str) -> list[str]:
        before = {old for old, new in self._pairs if new == path}
        return sorted(before | {new for old, new in self._pairs if old == path})
