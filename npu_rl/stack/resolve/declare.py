"""A component's declared requirements, read at its pin: before merges and patches, also outside of taken paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Component as Spec

_FILES = ("100644", "100755")


def declare(upstream: Upstream, component: LockedComponent, trees: Trees) -> LockedComponent:
    """Return a component from git with its declared requirements, whose files are fetched into the store.

    Args:
        trees: The objects of the pin's trees and of the submodules.

    Raises:
        SourceError, LockError.
    """
    assert component.pin is not None
    roots = {module.path: module.root for module in component.submodules}
    roots["."] = commit_tree_id(trees.read_object(component.pin)[1])

    def read(paths: Sequence[str]) -> Mapping[str, bytes | None]:
        inner: dict[str, str] = {}
        own: dict[str, str] = {}
        for path in paths:
            project = next((one for one in roots if path.startswith(f"{one}/")), ".")
            entry = _file(trees, roots[project], path.removeprefix(f"{project}/"))
            if entry is not None:
                (own if project == "." else inner)[path] = entry.oid
        return {**_contents(trees, inner), **_fetched_contents(upstream, component, trees, own)}

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
    if not files:
        return {}
    assert component.pin is not None
    refs = (component.ref,) if component.ref and component.ref.startswith("refs/") else ()
    request = GitRequest(upstream.name, tuple(dict.fromkeys(files.values())), (component.pin,), refs)
    sources = tuple(source for source in component.sources if not source.pypi)
    units = upstream.context.deliverer().request(request, sources, None).units
    with Trees(replace(trees.repository, alternates=tuple(unit.objects for unit in units))) as fetched:
        return _contents(fetched, files)


def _contents(trees: Trees, files: Mapping[str, str]) -> Mapping[str, bytes | None]:
    sizes = trees.sizes(files.values()) if files else {}
    return {path: trees.blob(oid) if sizes[oid] <= LARGEST else None for path, oid in files.items()}
