"""Operations on git trees as immutable values: reading, changing and combining give new ids."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from npu_rl.common.errors import ComposeError
from npu_rl.stack.git.command import Git, ObjectReader
from npu_rl.stack.git.objects import (
    EMPTY_TREE,
    GITLINK,
    SYMLINK,
    TREE,
    Entry,
    check_depth,
    format_tree,
    object_id,
    parse_tree,
    short,
)
from npu_rl.stack.store import Store, Unit

_MAXIMUM_TARGET = 4095  # bytes; Linux's PATH_MAX
_MAXIMUM_LINKS = 40  # as Linux: a loop of links leads nowhere


class Trees:
    """The objects of one composition: those borrowed from units, and new loose ones in `git_dir`."""

    def __init__(self, repository: Git) -> None:
        self.repository = repository
        self._reader: ObjectReader | None = None
        self._trees: dict[str, dict[str, Entry]] = {EMPTY_TREE: {}}
        self._written_ids: set[str] = set()
        self.write_object("tree", b"")  # git knows it without a file, but a pack of ours should hold it

    def close(self) -> None:
        """Stop the reader of objects."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Trees:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- objects -------------------------------------------------------------------------------

    def read_object(self, oid: str) -> tuple[str, bytes]:
        """Return an object's type and content. Raises GitError if it is missing."""
        if self._reader is None:
            self._reader = ObjectReader(self.repository)
        return self._reader.read(oid)

    def blob(self, oid: str) -> bytes:
        """Return the content of a blob."""
        return self.read_object(oid)[1]

    def write_object(self, kind: str, data: bytes) -> str:
        """Write a loose object and return its id."""
        oid = object_id(kind, data)
        if oid not in self._written_ids:
            self._written_ids.add(oid)
            path = f"{self.repository.git_dir}/objects/{oid[:2]}/{oid[2:]}"  # a Path costs more than its file
            with contextlib.suppress(FileExistsError), open(path, "xb", opener=_create) as file:
                file.write(zlib.compress(f"{kind} {len(data)}\0".encode() + data, 1))
        return oid

    def has(self, oid: str) -> bool:
        """Return whether an object exists."""
        return self.repository.run("cat-file", "-e", oid, ok=range(256)).code == 0

    def not_blobs(self, oids: Collection[str]) -> dict[str, str]:
        """Return the objects that are not blobs, with their type ("missing" if they do not exist)."""
        kinds = self.repository.batch_check("objecttype", sorted(oids))
        return {oid: kind for oid, kind in kinds.items() if kind != "blob"}

    def sizes(self, oids: Collection[str]) -> dict[str, int]:
        """Return the size of each object in bytes."""
        return {oid: int(n) for oid, n in self.repository.batch_check("objectsize", sorted(oids)).items()}

    def adopt(self, root: str) -> None:
        """Copy a borrowed tree with all its objects into this repository."""
        folders = [root]
        while folders:
            folder = folders.pop()
            for entry in self.entries(folder).values():
                if entry.is_tree:
                    folders.append(entry.oid)
                else:
                    self.write_object("blob", self.blob(entry.oid))
            self.write_tree(self.entries(folder))

    # -- trees ---------------------------------------------------------------------------------

    def entries(self, oid: str) -> dict[str, Entry]:
        """Return the entries of a tree; the mapping must not be changed."""
        known = self._trees.get(oid)
        if known is None:
            kind, data = self.read_object(oid)
            if kind != "tree":
                raise ComposeError(f"Object {short(oid)} is a {kind}, not a tree")
            known = self._trees[oid] = parse_tree(data)
        return known

    def write_tree(self, entries: dict[str, Entry]) -> str:
        """Write a tree and return its id."""
        oid = self.write_object("tree", format_tree(entries))
        self._trees.setdefault(oid, entries)
        return oid

    def find(self, root: str, path: str) -> Entry | None:
        """Return the entry at a path, or None. Symlinks are not followed."""
        entry: Entry | None = Entry(TREE, root)
        for found in self.entries_on_path(root, path):
            entry = found
        return entry

    def entries_on_path(self, root: str, path: str) -> Iterator[Entry | None]:
        """Yield the entry of each parent folder and of the path itself; None ends it early."""
        entry = Entry(TREE, root)
        for name in path.split("/") if path != "." else ():
            found = self.entries(entry.oid).get(name) if entry.is_tree else None
            yield found
            if found is None:
                return
            entry = found

    def put(self, root: str, path: str, entry: Entry | None) -> str:
        """Return a tree with `entry` at `path`; None removes the path and folders that become empty."""
        return self.put_all(root, [(path, entry)])

    def put_all(self, root: str, changes: Iterable[tuple[str, Entry | None]]) -> str:
        """Return a tree with many changes, in order, each as in `put`; every folder is written once."""
        draft = Draft(self, root)
        for path, entry in changes:
            draft.put(path, entry)
        return draft.write()

    def lay(self, root: str, path: str, entry: Entry) -> str:
        """Return a tree with `entry` added at `path`. Raises Collision where both have a file at one path."""
        if path != ".":
            name, _, rest = path.partition("/")
            wrapped = entry
            for part in reversed(rest.split("/") if rest else []):
                wrapped = Entry(TREE, self.write_tree({part: wrapped}))
            entry = Entry(TREE, self.write_tree({name: wrapped}))
        return self._union(root, entry.oid, "")

    def _union(self, left: str, right: str, at: str) -> str:
        if left == EMPTY_TREE:
            return right
        check_depth(at)
        merged = dict(self.entries(left))
        for name, entry in self.entries(right).items():
            present = merged.get(name)
            if present is None:
                merged[name] = entry
            elif present.is_tree and entry.is_tree:
                merged[name] = Entry(TREE, self._union(present.oid, entry.oid, f"{at}{name}/"))
            else:
                raise Collision(f"{at}{name}")
        return self.write_tree(merged)

    def files(self, root: str) -> Iterator[tuple[str, Entry]]:
        """Yield all paths of a tree that are not folders, in git's order."""
        for line in self.repository.lines("ls-tree", "-r", "-z", "--full-tree", root):
            facts, _, path = line.partition(b"\t")
            mode, _, oid = facts.decode().split(" ")
            yield path.decode("utf-8", "surrogateescape"), Entry(mode, oid)

    def changed(self, old: str, new: str) -> Iterator[tuple[str, Entry | None, Entry | None]]:
        """Yield the paths that differ between two trees, with the entry on each side.

        Where a file became a folder or a folder a file, the removal comes first, so that the changes can be replayed
        in this order.
        """
        yield from self._changed(old, new, "")

    def _changed(self, old: str, new: str, at: str) -> Iterator[tuple[str, Entry | None, Entry | None]]:
        if old == new:
            return
        check_depth(at)
        before, after = self.entries(old), self.entries(new)
        for name in sorted({*before, *after}):
            left, right = before.get(name), after.get(name)
            if left == right:
                continue
            left_tree, left_file = _tree_or_file(left)
            right_tree, right_file = _tree_or_file(right)
            if left_file and right_tree:
                yield f"{at}{name}", left_file, None
            yield from self._changed(left_tree or EMPTY_TREE, right_tree or EMPTY_TREE, f"{at}{name}/")
            if right_file or (left_file and not right_tree):
                yield f"{at}{name}", left_file, right_file


def _create(path: str, flags: int) -> int:
    """Open a new read-only file; its folder may be missing."""
    try:
        return os.open(path, flags, 0o444)
    except FileNotFoundError:
        Path(path).parent.mkdir(exist_ok=True)
        return os.open(path, flags, 0o444)


class Draft:
    """A tree under change, whose folders are read when needed and written once, at the end.

    Writing a folder of 20,000 files after each of its changes took minutes and 14 GB.
    """

    def __init__(self, trees: Trees, root: str) -> None:
        self._trees = trees
        self._root: _Folder = dict(trees.entries(root))

    def find(self, path: str) -> Entry | None:
        """Return the current entry at a path, or None; a changed folder is written first."""
        at: Entry | _Folder | None = self._root
        rest = path.split("/")
        while rest and isinstance(at, dict):
            at = at.get(rest.pop(0))
        if isinstance(at, dict):
            return Entry(TREE, self._write_folder(at))
        if at is None or not rest:
            return at
        return self._trees.find(at.oid, "/".join(rest)) if at.is_tree else None

    def put(self, path: str, entry: Entry | None) -> None:
        """Change one path (None removes it). Raises ComposeError where a parent folder is a file."""
        *folders, name = path.split("/")
        check_depth(path)
        folder = self._root
        above: list[tuple[_Folder, str]] = []
        for part in folders:
            below = folder.get(part, Entry(TREE, EMPTY_TREE))
            if isinstance(below, Entry):
                if not below.is_tree:
                    if entry is None:
                        return
                    raise ComposeError(f"{path} needs a folder where {part} is a file")
                below = folder[part] = dict(self._trees.entries(below.oid))
            above.append((folder, part))
            folder = below
        if entry is None:
            folder.pop(name, None)
        else:
            folder[name] = entry
        while above and not folder:
            folder, part = above.pop()
            del folder[part]

    def write(self) -> str:
        """Write all changes and return the id of the root."""
        return self._write_folder(self._root)

    def _write_folder(self, folder: _Folder) -> str:
        entries = {
            name: Entry(TREE, self._write_folder(found)) if isinstance(found, dict) else found
            for name, found in folder.items()
        }
        return self._trees.write_tree(entries)


_Folder = dict[str, "Entry | _Folder"]


def _tree_or_file(entry: Entry | None) -> tuple[str | None, Entry | None]:
    if entry is None:
        return None, None
    return (entry.oid, None) if entry.is_tree else (None, entry)


class Collision(ComposeError):
    """Two components have a file at one path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"Two components take the path {path}")
        self.path = path


@contextlib.contextmanager
def scratch_trees(store: Store, units: Iterable[Unit] = (), borrowed: Iterable[Path] = ()) -> Iterator[Trees]:
    """Create trees in a quarantine of the store.

    Args:
        units, borrowed: Units and object folders that lend their objects.
    """
    with store.quarantine() as folder:
        lenders = (*(unit.objects for unit in units), *borrowed)
        with Trees(Git(folder, alternates=lenders)) as trees:
            yield trees


def taken_tree(trees: Trees, parts: Iterable[tuple[str, Entry]]) -> str:
    """Return the *taken tree* of a component: the taken paths at their upstream locations."""
    listed = list(parts)
    whole = next((entry.oid for path, entry in listed if path == "."), None)
    return whole or trees.put_all(EMPTY_TREE, listed)


def refused_path(what: str, where: str | None, why: str | None = None) -> ComposeError:
    """Return the error for a path that no workspace can have."""
    return ComposeError(what, where=where, why=why, hint="Do not take that path.")


def check_links(files: Iterable[tuple[str, Entry]], trees: Trees, what: str) -> None:
    """Raise ComposeError for a symlink that points outside the tree, or a gitlink."""
    links: dict[str, str] = {}
    for path, entry in files:
        if entry.mode == GITLINK:
            raise ComposeError(
                f"{what} has a submodule at {path} that the manifest does not list",
                why=f"A gitlink ({short(entry.oid)}) has no files, only a commit id of another repository.",
                hint="List it under `submodules:` with its URL and commit id, leave it out with "
                "`other_submodules: skip`, or do not take that path.",
            )
        if entry.mode == SYMLINK:
            links[path] = trees.blob(entry.oid).decode("utf-8", "surrogateescape")
            if not 0 < len(links[path]) <= _MAXIMUM_TARGET:
                why = f"Its target is {len(links[path])} bytes long."
                raise refused_path(f"{what} has a symbolic link that can't be created", path, why)
    for path, target in links.items():
        if _leads_outside(path, links):
            raise refused_path(
                f"{what} has a symbolic link that points outside the tree", f"{path} -> {target}"
            )


def _leads_outside(path: str, links: Mapping[str, str]) -> bool:
    """Return whether following a path, through any number of links, leads outside the tree."""
    at: list[str] = []
    rest = path.split("/")[::-1]
    followed = 0
    while rest:
        part = rest.pop()
        if part == "..":
            if not at:
                return True
            at.pop()
        elif part not in ("", "."):
            at.append(part)
        target = links.get("/".join(at)) if part != ".." else None
        if target is not None:
            followed += 1
            if target.startswith("/") or "\0" in target:
                return True
            if followed > _MAXIMUM_LINKS:
                return False
            at.pop()
            rest.extend(target.split("/")[::-1])
    return False
