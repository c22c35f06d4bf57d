"""The place of patches in the series of a lock: which component each is for, and the tree before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lint.compared_files import TreeFiles
from npu_rl.stack.lint.series_state import SeriesState
from npu_rl.stack.lint.upstream_releases import UpstreamReleases
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.patches.series import PatchSource

_TREE = "tree"


class LockedSeries:
    """A lock and the objects of its trees.

    A patch of the lock is applied to the tree before it; any other patch, after all patches of the component that has
    the files.

    Args:
        releases: The tags of components, for files whose blob differs from the `index` line.
    """

    def __init__(
        self, lock: Lock, trees: Trees, manifest: Path, releases: Mapping[str, UpstreamReleases] | None = None
    ) -> None:
        self._lock, self._trees, self._releases = lock, trees, releases or {}
        self._states: dict[str, SeriesState] = {}
        self._places: dict[Path, tuple[str, LockedPatch, str]] = {}
        for component, patch, before in self._locked():
            if ":" not in patch.file:
                folder = manifest.parent if is_local(patch.file) else data_root() / "patchsets"
                self._places[(folder / patch.file).resolve()] = (component, patch, before)

    def _locked(self) -> Iterator[tuple[str, LockedPatch, str]]:
        """Yield each patch with its component and the tree before it."""
        for name, component in self._lock.components.items():
            before = assemble.merged(component)
            for patch in component.patches:
                yield name, patch, before
                before = patch.tree
        if self._lock.tree_patches:
            before, _ = assemble.assemble(self._trees, self._lock, with_tree_patches=False)
            for patch in self._lock.tree_patches:
                yield _TREE, patch, before
                before = patch.tree

    def locked(self, source: PatchSource) -> LockedPatch | None:
        """Return a patch as the lock has it; None if the lock does not have it."""
        found = self._place(source)
        return None if found is None else found[1]

    def state(self, source: PatchSource, patch: Patch) -> SeriesState:
        """Return the files that a patch changes, as the patches before it leave them.

        Raises PatchError if no component has all files of a patch that the lock does not have.
        """
        found = self._place(source)
        name, before = (found[0], found[2]) if found else (self._component_of(patch), "")
        if name not in self._states:
            files = TreeFiles(self._trees, before or self._result(name), self._releases.get(name))
            self._states[name] = SeriesState(files)
        return self._states[name]

    def _place(self, source: PatchSource) -> tuple[str, LockedPatch, str] | None:
        return None if source.path is None else self._places.get(source.path.resolve())

    def _result(self, name: str) -> str:
        return self._lock.tree if name == _TREE else self._lock.components[name].result

    def _component_of(self, patch: Patch) -> str:
        """Return the component, or the code tree, that has every file that a patch changes."""
        paths = [file.path for file in patch.files if file.old_path is not None]
        names = [*self._states, *self._lock.components, _TREE]
        counts: dict[str, int] = {}
        for name in dict.fromkeys(names):
            state = self._states.get(name) or SeriesState(TreeFiles(self._trees, self._result(name)))
            counts[name] = sum(state.has(path) for path in paths)
            if paths and counts[name] == len(paths):
                return name
        listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise PatchError(
            "No component has every file that the patch changes",
            why=f"These components have some of the {len(paths)} files: {listed}." if listed else None,
            hint="Correct --strip, or name the folder with the files: --against DIR",
        )
