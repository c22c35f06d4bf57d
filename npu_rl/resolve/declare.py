"""What a component declares to require, read at its pin: before merges and patches, and also where nothing is taken."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.compose.git_trees import Trees
from npu_rl.errors import LockError
from npu_rl.git.command import Git
from npu_rl.git.objects import Entry, commit_tree_id
from npu_rl.lock.lock_model import LockedComponent, LockedSource
from npu_rl.requirements.declared import LARGEST, Declared, ReadFiles, counted_files, declared_requirements
from npu_rl.resolve.upstream_repository import Context
from npu_rl.sources.deliver import Deliverer
from npu_rl.sources.git_fetch import GitRequest

if TYPE_CHECKING:
    from npu_rl.manifest.schema import Component as Spec

_FILES = ("100644", "100755")


def declare(
    context: Context, name: str, spec: Spec, device: str, component: LockedComponent, quarantine: Git
) -> LockedComponent:
    """Return a component from git with what it declares.

    Args:
        quarantine: The repository with the pin's commit and trees.

    Raises:
        SourceError, LockError.
    """
    if not _counts(spec):
        return replace(component, declares={})
    files = _PinnedFiles(context, name, component, quarantine)
    projects = [".", *(module.path for module in component.submodules)]
    return _with_declared(name, component, _declared(files.read, projects, device, spec))


def declare_release(
    name: str, spec: Spec, device: str, component: LockedComponent, files: Mapping[str, bytes]
) -> LockedComponent:
    """Return a component from an sdist with what it declares. Raises LockError.

    Args:
        files: Those of `release_files` that the sdist has.
    """
    if not _counts(spec):
        return replace(component, declares={})

    def read(paths: Sequence[str]) -> Mapping[str, bytes]:
        return {path: files[path] for path in paths if path in files}

    return _with_declared(name, component, _declared(read, ["."], device, spec))


def release_files(spec: Spec, device: str) -> tuple[str, ...]:
    """Return the files of an sdist that may declare requirements, and the folder with those that others name."""
    return ("requirements", *counted_files(device), *_named_paths(spec))


def _named_paths(spec: Spec) -> tuple[str, ...]:
    return tuple(entry.partition("[")[0] for entry in spec.requirements_from or ())


def _counts(spec: Spec) -> bool:
    """Return whether the component is part of the stack: one that only brings patches is not."""
    return bool(spec.take) or spec.checkout == "full" or spec.requirements_from is not None


def _declared(read: ReadFiles, projects: Sequence[str], device: str, spec: Spec) -> Declared:
    return declared_requirements(read, projects, device, spec.requirements_from)


def _with_declared(name: str, component: LockedComponent, declared: Declared) -> LockedComponent:
    if declared.missing:
        raise LockError(
            f"{name} has no file {', '.join(declared.missing)} at this pin",
            hint="Correct `requirements_from:`.",
        )
    return replace(component, declares=declared.files, unread=tuple(declared.unread))


class _PinnedFiles:
    """The files of a component at its pin, and of its submodules at theirs. Content is fetched when it is read."""

    def __init__(self, context: Context, name: str, component: LockedComponent, quarantine: Git) -> None:
        assert component.pin is not None
        self._name, self._component, self._pin = name, component, component.pin
        self._store, self._quarantine = context.store, quarantine
        self._deliverer = Deliverer(context.store, context.network, context.manifest_folder, context.watcher)

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes | None]:
        """Return the content of those paths that are files; None for one that is too large."""
        units = []
        for module in self._component.submodules:
            if any(path.startswith(f"{module.path}/") for path in paths):
                request = GitRequest(f"{self._name}/{module.path}", (module.root,), (module.pin,))
                units += self._deliver(request, (LockedSource(git=module.git),))
        with self._store.quarantine() as folder:
            found = self._find(Git(folder, alternates=(self._quarantine.git_dir / "objects", *units)), paths)
        own = tuple(dict.fromkeys(entry.oid for path, entry in found.items() if self._project(path) == "."))
        if own:
            ref = self._component.ref or ""
            refs = (ref,) if ref.startswith("refs/") else ()
            sources = tuple(source for source in self._component.sources if not source.pypi)
            units += self._deliver(GitRequest(self._name, own, (self._pin,), refs), sources)
        with self._store.quarantine() as folder:
            return _contents(Git(folder, alternates=tuple(units)), found)

    def _deliver(self, request: GitRequest, sources: tuple[LockedSource, ...]) -> list[Path]:
        return [unit.objects for unit in self._deliverer.request(request, sources, None).units]

    def _project(self, path: str) -> str:
        """Return the submodule that a path lies in, or "."."""
        modules = (module.path for module in self._component.submodules)
        return next((module for module in modules if path.startswith(f"{module}/")), ".")

    def _find(self, repository: Git, paths: Sequence[str]) -> dict[str, Entry]:
        """Return the entries of those paths that are files."""
        trees = Trees(repository)
        try:
            roots = {module.path: module.root for module in self._component.submodules}
            roots["."] = commit_tree_id(trees.read_object(self._pin)[1])
            projects = {path: self._project(path) for path in paths}
            entries = {
                path: trees.find(roots[project], posixpath.relpath(path, project))
                for path, project in projects.items()
            }
        finally:
            trees.close()
        return {path: entry for path, entry in entries.items() if entry is not None and entry.mode in _FILES}


def _contents(repository: Git, found: Mapping[str, Entry]) -> Mapping[str, bytes | None]:
    trees = Trees(repository)
    try:
        sizes = trees.sizes({entry.oid for entry in found.values()})
        return {
            path: trees.blob(entry.oid) if sizes[entry.oid] <= LARGEST else None
            for path, entry in found.items()
        }
    finally:
        trees.close()
