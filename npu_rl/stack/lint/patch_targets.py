"""Trees that linted patches are applied to: the components of a lock, or the files of a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from npu_rl.common.bounded import read_if_file
from npu_rl.common.bundled import data_root
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import EMPTY_TREE, SYMLINK, Entry
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.patches.series import PatchSource

_TREE = "tree"  # the assembled tree beside the components
_FILE = "100644"


class PatchTarget(Protocol):
    """Trees by name, to which patches are applied one after the other.

    Attributes:
        now: The trees so far; set by the caller after each patch.
    """

    trees: Trees
    now: dict[str, str]

    def locked(self, source: PatchSource) -> LockedPatch | None:
        """Return a patch as a lock has it; None if no lock has it."""

    def name(self, source: PatchSource, patch: Patch) -> str:
        """Return the name of the tree that a patch is for, which is in `now` afterwards. Raises PatchError."""


class FolderFiles:
    """The files of a folder as they are on disk. A tree has those that the patches name."""

    def __init__(self, folder: Path, trees: Trees) -> None:
        self.trees = trees
        self._folder = folder.absolute()
        self.now = {str(folder): EMPTY_TREE}
        self._read: set[str] = set()

    def locked(self, source: PatchSource) -> LockedPatch | None:  # noqa: ARG002
        """Return None."""
        return None

    def name(self, source: PatchSource, patch: Patch) -> str:  # noqa: ARG002
        """Return the folder, after reading the files of the patch that no earlier one has changed."""
        (name,) = self.now
        for path in {file.path for file in patch.files} - self._read:
            self._read.add(path)
            found, entry = self._entry(path)
            if entry is not None:
                self.now[name] = self.trees.put(self.now[name], found, entry)
        return name

    def _entry(self, path: str) -> tuple[str, Entry | None]:
        """Return a file, or the symbolic link that a path leads through."""
        at = self._folder
        for part in path.split("/"):
            at = at / part
            if at.is_symlink():
                link = self.trees.write_object("blob", str(at.readlink()).encode("utf-8", "surrogateescape"))
                return at.relative_to(self._folder).as_posix(), Entry(SYMLINK, link)
        with disk_errors(at):
            content = read_if_file(at)
        return path, None if content is None else Entry(_FILE, self.trees.write_object("blob", content))


@contextmanager
def files_of_folder(folder: Path) -> Iterator[FolderFiles]:
    """Provide the files of a folder as a target; their tree is in a temporary repository."""
    with tempfile.TemporaryDirectory(prefix="npu-rl-lint-") as scratch:
        init_bare(Path(scratch))
        with Trees(Git(Path(scratch))) as trees:
            yield FolderFiles(folder, trees)


class LockedTrees:
    """The trees of a lock.

    A patch of the lock is applied to the tree before it; any other patch, after all patches of the component that has
    the files.
    """

    def __init__(self, lock: Lock, trees: Trees, manifest: Path) -> None:
        self.trees = trees
        self.now: dict[str, str] = {}
        self._results = {
            **{name: component.result for name, component in lock.components.items()},
            _TREE: lock.tree,
        }
        self._places = {}
        for name, patch, before in _locked_patches(lock, trees):
            if ":" not in patch.file:
                folder = manifest.parent if is_local(patch.file) else data_root() / "patchsets"
                self._places[(folder / patch.file).resolve()] = (name, patch, before)

    def locked(self, source: PatchSource) -> LockedPatch | None:
        """Return a patch as the lock has it, found by its path."""
        found = None if source.path is None else self._places.get(source.path.resolve())
        return None if found is None else found[1]

    def name(self, source: PatchSource, patch: Patch) -> str:
        """Return the component of a patch. Raises PatchError if no component has all of its files."""
        found = None if source.path is None else self._places.get(source.path.resolve())
        name = found[0] if found else self._component_of(patch)
        self.now.setdefault(name, found[2] if found else self._results[name])
        return name

    def _component_of(self, patch: Patch) -> str:
        paths = [file.path for file in patch.files if file.old_path is not None]
        for name in dict.fromkeys([*self.now, *self._results]):
            tree = self.now.get(name, self._results[name])
            if paths and all(self.trees.find(tree, path) is not None for path in paths):
                return name
        raise PatchError(
            "No component has every file that the patch changes",
            hint="Correct --strip, or name the folder with the files: --against DIR",
        )


def _locked_patches(lock: Lock, trees: Trees) -> Iterator[tuple[str, LockedPatch, str]]:
    """Yield each patch with its component and the tree before it."""
    for name, component in lock.components.items():
        before = assemble.merged(component)
        for patch in component.patches:
            yield name, patch, before
            before = patch.tree
    if lock.tree_patches:
        before, _ = assemble.assemble(trees, lock, with_tree_patches=False)
        for patch in lock.tree_patches:
            yield _TREE, patch, before
            before = patch.tree
