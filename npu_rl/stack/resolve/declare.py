"""What a component declares to require, read at its pin: before merges and patches, and outside of what is taken."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.common.yaml_documents.text_checks import split_requirement_file
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import Entry, commit_tree_id
from npu_rl.stack.lock.lock_model import LockedComponent
from npu_rl.stack.requirements.declared import (
    LARGEST,
    Declared,
    ReadFiles,
    counted_files,
    declared_requirements,
)
from npu_rl.stack.resolve.upstream_repository import Context
from npu_rl.stack.sources.deliver import Deliverer
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.store import Unit

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Component as Spec

_FILES = ("100644", "100755")


def declaring_blobs(trees: Trees, root: str, spec: Spec, device: str) -> tuple[str, ...]:
    """Return the ids of those files of a pin's root tree that may declare requirements, to be fetched with the rest."""
    found = (_file(trees, root, path) for path in _first_paths(spec, device)) if _counts(spec) else ()
    return tuple(dict.fromkeys(entry.oid for entry in found if entry is not None))


def deliver_blobs(context: Context, name: str, component: LockedComponent, oids: Sequence[str]) -> list[Unit]:
    """Bring files of a component at its pin into the store. Raises SourceError."""
    if not oids:
        return []
    assert component.pin is not None
    refs = (component.ref,) if component.ref and component.ref.startswith("refs/") else ()
    request = GitRequest(name, tuple(oids), (component.pin,), refs)
    sources = tuple(source for source in component.sources if not source.pypi)
    deliverer = Deliverer(context.store, context.network, context.manifest_folder, context.watcher)
    return list(deliverer.request(request, sources, None).units)


def declare(
    context: Context,
    name: str,
    spec: Spec,
    device: str,
    component: LockedComponent,
    trees: Trees,
    fetched: Collection[str],
) -> LockedComponent:
    """Return a component from git with what it declares.

    Args:
        trees: The objects of the pin's trees and of the submodules.
        fetched: The ids of `declaring_blobs`, which are among them.

    Raises:
        SourceError, LockError.
    """
    if not _counts(spec):
        return replace(component, declares={})
    files = _PinnedFiles(context, name, component, trees, fetched)
    projects = [".", *(module.path for module in component.submodules)]
    return _with_declared(name, component, _declared(files.read, projects, device, spec))


def declare_release(
    name: str,
    spec: Spec,
    device: str,
    component: LockedComponent,
    files: Mapping[str, bytes],
    trees: Trees,
) -> LockedComponent:
    """Return a component from an sdist with what it declares. Raises LockError.

    Args:
        files: Those of `release_files` that the sdist has.
        trees: The objects of what is taken, where setup.py may name further files.
    """
    if not _counts(spec):
        return replace(component, declares={})

    def read(paths: Sequence[str]) -> Mapping[str, bytes | None]:
        taken = {path: _file(trees, component.tree, path) for path in paths if path not in files}
        oids = {path: entry.oid for path, entry in taken.items() if entry is not None}
        return {**{path: files[path] for path in paths if path in files}, **_contents(trees, oids)}

    return _with_declared(name, component, _declared(read, ["."], device, spec))


def release_files(spec: Spec, device: str) -> tuple[str, ...]:
    """Return the files of an sdist that may declare requirements, and the folder with those that others name."""
    return ("requirements", *_first_paths(spec, device))


def _first_paths(spec: Spec, device: str) -> tuple[str, ...]:
    """Return the files that count before another names more."""
    if spec.requirements_from is None:
        return counted_files(device)
    return tuple(split_requirement_file(entry)[0] for entry in spec.requirements_from)


def _file(trees: Trees, root: str, path: str) -> Entry | None:
    entry = trees.find(root, path)
    return entry if entry is not None and entry.mode in _FILES else None


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
    """The files of a component at its pin, and of its submodules at theirs."""

    def __init__(
        self,
        context: Context,
        name: str,
        component: LockedComponent,
        trees: Trees,
        fetched: Collection[str],
    ) -> None:
        assert component.pin is not None
        self._context, self._name, self._component = context, name, component
        self._trees, self._fetched = trees, fetched
        self._roots = {module.path: module.root for module in component.submodules}
        self._root = commit_tree_id(trees.read_object(component.pin)[1])

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes | None]:
        """Return the content of those paths that are files; None for one that is too large."""
        own: dict[str, str] = {}
        of_modules: dict[str, str] = {}
        for path in paths:
            module = next((one for one in self._roots if path.startswith(f"{one}/")), None)
            root = self._root if module is None else self._roots[module]
            entry = _file(self._trees, root, path if module is None else posixpath.relpath(path, module))
            if entry is not None:
                (own if module is None else of_modules)[path] = entry.oid
        later = {path: oid for path, oid in own.items() if oid not in self._fetched}
        at_hand = {path: oid for path, oid in (own | of_modules).items() if path not in later}
        return {**_contents(self._trees, at_hand), **self._fetch(later)}

    def _fetch(self, later: Mapping[str, str]) -> Mapping[str, bytes | None]:
        """Return the content of files that others name, which are in the store then."""
        if not later:
            return {}
        oids = tuple(dict.fromkeys(later.values()))
        units = deliver_blobs(self._context, self._name, self._component, oids)
        trees = Trees(replace(self._trees.repository, alternates=tuple(unit.objects for unit in units)))
        try:
            return _contents(trees, later)
        finally:
            trees.close()


def _contents(trees: Trees, files: Mapping[str, str]) -> Mapping[str, bytes | None]:
    sizes = trees.sizes(files.values()) if files else {}
    return {path: trees.blob(oid) if sizes[oid] <= LARGEST else None for path, oid in files.items()}
