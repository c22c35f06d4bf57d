"""Locking of source releases: as the only source of a component, or next to git, where they must equal the pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.compose.git_trees import scratch_trees, taken_tree
from npu_rl.stack.git.command import Git
from npu_rl.stack.lock.lock_model import LockedComponent, LockedDist, LockedSource
from npu_rl.stack.resolve.declare import declare_release, release_files
from npu_rl.stack.resolve.takes import look_up, look_up_held
from npu_rl.stack.resolve.upstream_repository import Upstream
from npu_rl.stack.store import unit_key

if TYPE_CHECKING:
    from npu_rl.stack.sources.sdist_unit import Imported

_MAXIMUM_SHOWN = 15


def sources_of(upstream: Upstream) -> tuple[LockedSource, ...]:
    """Return the sources of the manifest; a release keeps its hash from an earlier lock."""
    kept = upstream.kept
    hashes = {(s.pypi, s.drop): s.sha256 for s in kept.sources} if kept is not None else {}
    return tuple(
        LockedSource(s.git, s.pypi, drop=tuple(s.drop), sha256=s.pypi and hashes.get((s.pypi, tuple(s.drop))))
        for s in upstream.spec.sources
    )


def lock_release(upstream: Upstream, dist: LockedDist | None) -> LockedComponent:
    """Lock a component whose only sources are package indexes. Raises SourceError, LockError.

    The release is put into the store, to save composing and a later setup the download.
    """
    name, spec, held, store = upstream.name, upstream.spec, upstream.held, upstream.context.store
    found: list[LockedComponent] = []
    for source in sources_of(upstream):
        with scratch_trees(store) as trees:
            keep = [*(take.from_ for take in spec.take), *held]
            imported = _import(upstream, source, keep, trees.repository, release_files(upstream))
            tree = imported.tree
            takes, holds = look_up(trees, name, spec, tree), look_up_held(trees, name, held, tree)
            component = LockedComponent((imported.source,), takes, tree, tree, dist=dist, held=holds)
            found.append(declare_release(upstream, component, imported.beside, trees))
            wants = component.wanted_objects()
            facts = {"component": name, "wants": list(wants), "source": source.pypi}
            if store.find(unit_key("objects", wants)) is None:
                store.publish(trees.repository.git_dir, unit_key("objects", wants), facts)
    different = dict.fromkeys(component.tree for component in found)
    if len(different) > 1:
        raise LockError(
            f"The sources of {name} have different trees", why=", ".join(different), hint="Keep one source."
        )
    return replace(found[0], sources=tuple(component.sources[0] for component in found))


def check_releases(upstream: Upstream, component: LockedComponent) -> tuple[LockedSource, ...]:
    """Check that each release next to a git source has the pin's tree after the drops.

    Returns the sources, with file name, size and hash of each release. Raises SourceError, LockError.
    """
    releases = [source for source in component.sources if source.pypi]
    if releases and (component.merges or component.submodules or component.checkout == "full"):
        raise LockError(
            f"{releases[0].pypi} can't be a source of {upstream.name}",
            why="A release contains neither the commits to merge, nor submodules, nor the whole repository.",
            hint="Remove that source.",
        )
    return tuple(_compared_with_pin(upstream, component, s) if s.pypi else s for s in component.sources)


def _compared_with_pin(upstream: Upstream, component: LockedComponent, source: LockedSource) -> LockedSource:
    from_git = replace(component, sources=tuple(s for s in component.sources if not s.pypi))
    units = upstream.context.deliverer().component(upstream.name, from_git).units
    entries = component.entries_at_pin()
    with scratch_trees(upstream.context.store, units) as trees:
        imported = _import(upstream, source, [path for path, _ in entries], trees.repository)
        differing = [
            f"{'only in the release' if a is None else 'differs' if b else 'not in the release'}: {path}"
            for path, a, b in trees.changed(taken_tree(trees, entries), imported.tree)
        ]
    if differing:
        more = [f"and {len(differing) - _MAXIMUM_SHOWN} more"] if len(differing) > _MAXIMUM_SHOWN else []
        raise LockError(
            f"{source.pypi} differs from {upstream.name} at {component.pin}",
            why="\n".join(differing[:_MAXIMUM_SHOWN] + more),
            hint="List generated files under `drop:` of that source, or remove the source.",
        )
    return imported.source


def _import(
    upstream: Upstream, source: LockedSource, keep: Sequence[str], here: Git, beside: Sequence[str] = ()
) -> Imported:
    from npu_rl.stack.sources.sdist_unit import import_sdist

    context, name = upstream.context, upstream.name
    context.need_network(name)
    imported = import_sdist(here, name, source, keep, context.network, context.watcher, beside=beside)
    context.watcher.end(name, imported.source.size or 0)
    return imported
