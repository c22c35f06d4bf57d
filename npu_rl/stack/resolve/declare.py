"""A component's declared requirements, read at its pin: before merges and patches, also outside of taken paths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.common.yaml_documents.text_checks import split_requirement_file
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import Entry, commit_tree_id
from npu_rl.stack.lock.lock_model import LockedComponent
from npu_rl.stack.requirements.declared import LARGEST, ReadFiles, counted_files, declared_requirements
from npu_rl.stack.resolve.upstream_repository import Upstream
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.store import Unit

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Component as Spec

_FILES = ("100644", "100755")


def declaring_blobs(upstream: Upstream, trees: Trees, root: str) -> tuple[str, ...]:
    """Return the ids of the files in a pin's root tree that may declare requirements, to be fetched with the rest."""
    paths = _first_paths(upstream) if _counts(upstream.spec) else ()
    found = (_file(trees, root, path) for path in paths)
    return tuple(dict.fromkeys(entry.oid for entry in found if entry is not None))


def deliver_blobs(upstream: Upstream, component: LockedComponent, oids: Sequence[str]) -> list[Unit]:
    """Fetch files of a component at its pin into the store. Raises SourceError."""
    if not oids:
        return []
    assert component.pin is not None
    refs = (component.ref,) if component.ref and component.ref.startswith("refs/") else ()
    request = GitRequest(upstream.name, tuple(oids), (component.pin,), refs)
    sources = tuple(source for source in component.sources if not source.pypi)
    return list(upstream.context.deliverer().request(request, sources, None).units)


def declare(
    upstream: Upstream, component: LockedComponent, trees: Trees, fetched: Collection[str]
) -> LockedComponent:
    """Return a component from git with its declared requirements.

    Args:
        trees: The objects of the pin's trees and of the submodules.
        fetched: The ids of `declaring_blobs`, which are among them.

    Raises:
        SourceError, LockError.
    """
    assert component.pin is not None
    roots = {module.path: module.root for module in component.submodules}
    roots["."] = commit_tree_id(trees.read_object(component.pin)[1])

    def read(paths: Sequence[str]) -> Mapping[str, bytes | None]:
        here: dict[str, str] = {}
        later: dict[str, str] = {}
        for path in paths:
            project = next((one for one in roots if path.startswith(f"{one}/")), ".")
            entry = _file(trees, roots[project], path.removeprefix(f"{project}/"))
            if entry is not None:
                fetch = project == "." and entry.oid not in fetched
                (later if fetch else here)[path] = entry.oid
        return {**_contents(trees, here), **_fetched_contents(upstream, component, trees, later)}

    return _with_declared(upstream, component, read)


def declare_release(
    upstream: Upstream, component: LockedComponent, files: Mapping[str, bytes], trees: Trees
) -> LockedComponent:
    """Return a component from an sdist with its declared requirements. Raises LockError.

    Args:
        files: The files of `release_files` that the sdist has.
        trees: The objects of the taken paths, which may have further files that setup.py names.
    """

    def read(paths: Sequence[str]) -> Mapping[str, bytes | None]:
        taken = {path: _file(trees, component.tree, path) for path in paths if path not in files}
        oids = {path: entry.oid for path, entry in taken.items() if entry is not None}
        return {**{path: files[path] for path in paths if path in files}, **_contents(trees, oids)}

    return _with_declared(upstream, component, read)


def release_files(upstream: Upstream) -> tuple[str, ...]:
    """Return the files of an sdist that may declare requirements, and the folder with files that they may name."""
    return ("requirements", *_first_paths(upstream))


def _first_paths(upstream: Upstream) -> tuple[str, ...]:
    """Return the files that count, before files that they name."""
    named = upstream.spec.requirements_from
    if named is None:
        return counted_files(upstream.device)
    return tuple(split_requirement_file(entry)[0] for entry in named)


def _file(trees: Trees, root: str, path: str) -> Entry | None:
    entry = trees.find(root, path)
    return entry if entry is not None and entry.mode in _FILES else None


def _counts(spec: Spec) -> bool:
    """Return whether the component is part of the stack, unlike one that only provides patches."""
    return bool(spec.take) or spec.checkout == "full" or spec.requirements_from is not None


def _with_declared(upstream: Upstream, component: LockedComponent, read: ReadFiles) -> LockedComponent:
    if not _counts(upstream.spec):
        return replace(component, declares={})
    projects = [".", *(module.path for module in component.submodules)]
    declared = declared_requirements(read, projects, upstream.device, upstream.spec.requirements_from)
    if declared.missing:
        raise LockError(
            f"{upstream.name} has no file {', '.join(declared.missing)} at this pin",
            hint="Correct `requirements_from:`.",
        )
    return replace(component, declares=declared.files, unread=tuple(declared.unread))


def _fetched_contents(
    upstream: Upstream, component: LockedComponent, trees: Trees, files: Mapping[str, str]
) -> Mapping[str, bytes | None]:
    """Return the content of files that others name, after fetching them into the store."""
    units = deliver_blobs(upstream, component, tuple(dict.fromkeys(files.values())))
    alternates = tuple(unit.objects for unit in units)
    with Trees(replace(trees.repository, alternates=alternates)) as fetched:
        return _contents(fetched, files)


def _contents(trees: Trees, files: Mapping[str, str]) -> Mapping[str, bytes | None]:
    sizes = trees.sizes(files.values()) if files else {}
    return {path: trees.blob(oid) if sizes[oid] <= LARGEST else None for path, oid in files.items()}
