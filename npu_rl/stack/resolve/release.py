"""Locking of source releases: as the only source of a component, or next to git, where they must equal the pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.compose.git_trees import scratch_trees, taken_tree
from npu_rl.stack.git.command import Git
from npu_rl.stack.lock import lock_model
from npu_rl.stack.resolve.declare import declare_release, release_files
from npu_rl.stack.resolve.takes import look_up, look_up_held
from npu_rl.stack.resolve.upstream_repository import Upstream
from npu_rl.stack.store import unit_key

if TYPE_CHECKING:
    from npu_rl.stack.sources.sdist_unit import Imported

_MAXIMUM_SHOWN = 15


def sources_of(upstream: Upstream) -> tuple[lock_model.LockedSource, ...]:
    """Return the sources of the manifest; a release keeps its hash from an earlier lock."""
    kept = upstream.kept
    hashes = {(s.pypi, s.drop): s.sha256 for s in kept.sources} if kept is not None else {}
    return tuple(
        lock_model.LockedSource(
            git=s.git,
            pypi=s.pypi,
            drop=tuple(s.drop),
            sha256=hashes.get((s.pypi, tuple(s.drop))) if s.pypi else None,
        )
        for s in upstream.spec.sources
    )


def lock_release(upstream: Upstream, dist: lock_model.LockedDist | None) -> lock_model.LockedComponent:
    """Lock a component whose only sources are package indexes. Raises SourceError, LockError."""
    name, spec, held = upstream.name, upstream.spec, upstream.held
    found: list[lock_model.LockedComponent] = []
    for source in sources_of(upstream):
        with scratch_trees(upstream.context.store) as trees:
            keep = [*(take.from_ for take in spec.take), *held]
            imported = _import(upstream, source, keep, trees.repository, release_files(upstream))
            tree = imported.tree
            component = lock_model.LockedComponent(
                (_locked(source, imported),),
                look_up(trees, name, spec, tree),
                tree,
                tree,
                dist=dist,
                held=look_up_held(trees, name, held, tree),
            )
            found.append(declare_release(upstream, component, imported.beside, trees))
            _publish_release(upstream, component, trees.repository.git_dir)
    different = dict.fromkeys(component.tree for component in found)
    if len(different) > 1:
        raise LockError(
            f"The sources of {name} have different trees", why=", ".join(different), hint="Keep one source."
        )
    return replace(found[0], sources=tuple(c.sources[0] for c in found))


def _publish_release(upstream: Upstream, component: lock_model.LockedComponent, folder: Path) -> None:
    """Put the release into the store, to save composing and a later setup the download."""
    store, wants = upstream.context.store, component.wanted_objects()
    key = unit_key("objects", wants)
    if store.find(key) is None:
        facts = {"component": upstream.name, "wants": list(wants), "source": component.sources[0].pypi}
        store.publish(folder, key, facts)


def check_releases(
    upstream: Upstream, component: lock_model.LockedComponent
) -> tuple[lock_model.LockedSource, ...]:
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


def _compared_with_pin(
    upstream: Upstream, component: lock_model.LockedComponent, source: lock_model.LockedSource
) -> lock_model.LockedSource:
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
    return _locked(source, imported)


def _locked(source: lock_model.LockedSource, imported: Imported) -> lock_model.LockedSource:
    sdist = imported.sdist
    return replace(source, filename=sdist.filename, sha256=sdist.sha256, size=sdist.size)


def _import(
    upstream: Upstream,
    source: lock_model.LockedSource,
    keep: Sequence[str],
    repository: Git,
    beside: Sequence[str] = (),
) -> Imported:
    from npu_rl.stack.sources.sdist_unit import import_sdist

    context, name = upstream.context, upstream.name
    context.need_network(name)
    imported = import_sdist(
        repository, name, source, keep, context.network, context.watcher, context.store, beside=beside
    )
    context.watcher.end(name, imported.received)
    return imported
