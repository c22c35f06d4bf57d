"""A merge as records: `git merge-tree` computes it once, here; every set-up replays it path by path."""

from __future__ import annotations

from itertools import product

from npu_rl import git
from npu_rl.compose.merge import merge_file, replay
from npu_rl.compose.trees import Trees
from npu_rl.errors import LockError
from npu_rl.git import GitError
from npu_rl.manifest.lock import Record
from npu_rl.objects import Entry, format_commit

_WHO = "npu-rl <npu-rl@invalid>"


def merge_trees(trees: Trees, base: str, ours: str, theirs: str, what: str) -> str:
    """The three-way merge of taken trees. Raises LockError that lists the conflicts.

    The parents are synthetic, so that the merge base is the one given and no history is needed.
    """
    git.require(git.MERGE_TREE_VERSION, "compute merges for a lock (git merge-tree --write-tree)")

    def commit(tree: str, parents: list[str]) -> str:
        return trees.write_object("commit", format_commit(tree, parents, _WHO, 0, "side\n"))

    root = commit(base, [])
    # The parents' messages differ from each other by nothing: equal trees would give one commit, which is right.
    left, right = commit(ours, [root]), commit(theirs, [root])
    try:
        done = trees.repository.run(
            "merge-tree", "--write-tree", "-z", "--name-only", "--messages", left, right, ok=(0, 1)
        )
    except GitError as error:
        raise LockError(f"{what}: git merge-tree failed", why=error.stderr) from error
    fields = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    if done.code == 1:
        conflicts = []
        for name in fields[1:]:
            if not name:
                break
            conflicts.append(name)
        raise LockError(
            f"{what} has conflicts in {len(conflicts)} files",
            why="\n".join(conflicts),
            hint="Resolve it once by hand and carry the result as a patch, or choose another pin.",
        )
    return fields[0].strip()


def record(trees: Trees, base: str, ours: str, theirs: str, result: str, what: str) -> tuple[Record, ...]:
    """What turns `ours` into `result`, and proof that replaying it does. Raises LockError."""
    upstream = {e.oid for side in (base, ours, theirs) for _, e in trees.files(side)}
    records = []
    for path, _, after in trees.changed(ours, result):
        if after is None:
            records.append(Record(path, None, None))
        elif after.oid in upstream:
            records.append(Record(path, after.mode, after.oid))
        else:
            three = _three_way(trees, base, ours, theirs, path, after, what)
            records.append(Record(path, after.mode, after.oid, three))
    if replay(trees, ours, records, what) != result:
        raise LockError(f"{what}: replaying the merge gives another tree", hint="Please report this.")
    return tuple(records)


def _three_way(
    trees: Trees, base: str, ours: str, theirs: str, path: str, after: Entry, what: str
) -> tuple[str, str, str]:
    """The three blobs whose merge is the result, also where one side renamed the file."""
    old_names = {path, *_renamed(trees, base, ours, path), *_renamed(trees, base, theirs, path)}
    sides = []
    for side in (base, ours, theirs):
        entries = (trees.find(side, name) for name in sorted(old_names, key=lambda n: n != path))
        sides.append([e.oid for e in entries if e is not None and not e.is_tree])
    for b, o, t in product(*sides):
        merged, clean = merge_file(trees, b, o, t)
        if clean and trees.write_object("blob", merged) == after.oid:
            return b, o, t
    raise LockError(
        f"{what}: {path} can't be replayed with git merge-file",
        hint="Carry this change as a patch instead of a merge.",
    )


def _renamed(trees: Trees, base: str, side: str, path: str) -> list[str]:
    """The other name of a path that one side renamed, in either direction."""
    fields = trees.repository.lines(
        "diff-tree", "-r", "-z", "-M", "--diff-filter=R", "--name-status", base, side
    )
    names = [f.decode("utf-8", "surrogateescape") for f in fields]
    pairs = list(zip(names[1::3], names[2::3], strict=True))
    return [old for old, new in pairs if new == path] + [new for old, new in pairs if old == path]
