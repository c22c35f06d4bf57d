"""Creation of a manifest's lock."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.assemble import write_runtime
from npu_rl.stack.compose.build_tree import check_new_tree, compose, list_files
from npu_rl.stack.compose.composed_unit import locked_text
from npu_rl.stack.compose.git_trees import Trees, scratch_trees
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.resolve.component import lock_component
from npu_rl.stack.resolve.record_patches import TREE, Patching, lock_patches
from npu_rl.stack.resolve.takes import held_paths
from npu_rl.stack.resolve.upstream_repository import Context, Upstream
from npu_rl.stack.sources.deliver import in_parallel
from npu_rl.stack.store import Unit

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest


def build_lock(
    context: Context,
    loaded: LoadedManifest,
    *,
    earlier: Lock | None = None,
    keep: Collection[str] = (),
    jobs: int = 6,
) -> Lock:
    """Resolve, merge, patch and assemble; only the store is written to.

    Raises any NpuRlError.

    Args:
        keep: Components that keep their ids from `earlier`.
    """
    manifest = loaded.manifest
    kept = {n: earlier.components.get(n) for n in keep} if earlier is not None else {}
    stop = threading.Event()
    stoppable = replace(context, network=replace(context.network, stop=stop))
    upstreams = [
        Upstream(stoppable, name, spec, manifest.device, held_paths(manifest, name), kept.get(name))
        for name, spec in manifest.components.items()
    ]
    tasks = {upstream.name: partial(lock_component, upstream) for upstream in upstreams}
    return _finished(context, loaded, in_parallel(tasks, jobs, stop), jobs)


def rebuild_lock(context: Context, loaded: LoadedManifest, earlier: Lock, *, jobs: int = 6) -> Lock:
    """Patch and assemble again from the pins of the manifest's earlier lock.

    No ref is resolved again: this is for changed patch files or a changed runtime. Missing objects are fetched.

    Raises LockError if the manifest has changed since, and every other NpuRlError.
    """
    if loaded.digest != earlier.manifest_digest:
        raise LockError(
            f"{loaded.manifest.name} has changed since its lock was made",
            hint=f"Lock it again: npu-rl lock --manifest {loaded.manifest.name} --output LOCK",
        )
    merged = {
        name: replace(one, patches=(), result=assemble.merged(one))
        for name, one in earlier.components.items()
    }
    return _finished(context, loaded, merged, jobs)


def _finished(
    context: Context,
    loaded: LoadedManifest,
    components: Mapping[str, lock_model.LockedComponent],
    jobs: int,
) -> Lock:
    """Return the lock of components that are merged but not yet patched."""
    manifest = loaded.manifest
    unpatched = Lock(
        lock_format=lock_model.LOCK_FORMAT,
        manifest=manifest.name,
        title=manifest.title,
        device=manifest.device,
        manifest_digest=loaded.digest,
        manifest_files=dict(loaded.files),
        components=dict(components),
        tree="",
        commit="",
        requirements=tuple(manifest.requirements),
        host={k: v for k, v in manifest.host.model_dump().items() if v is not None},
        env=dict(manifest.env),
    )
    deliveries = context.deliverer().deliver(unpatched, jobs)
    units = [unit for delivery in deliveries.values() for unit in delivery.units]
    return _compose(context, loaded, unpatched, units)


def _compose(context: Context, loaded: LoadedManifest, unpatched: Lock, units: list[Unit]) -> Lock:
    """Return the lock with its patches, trees and commit, composed once to get the ids and again as `setup` does."""
    with scratch_trees(context.store, units) as trees:

        def text_of(patch: lock_model.LockedPatch, results: dict[str, str]) -> bytes:
            return locked_text(patch, context.manifest_folder, context.store, trees, results)

        compose(trees, unpatched, text_of)  # the merged trees, in this object database
        patched = _patch(context, loaded, unpatched, trees)
        tree, commit = assemble.assemble(trees, patched)
        complete = replace(patched, tree=tree, commit=commit)
        listing = list_files(trees, complete, compose(trees, complete, text_of))
        check_new_tree(trees, listing, context.notify)
    return complete


def _patch(context: Context, loaded: LoadedManifest, unpatched: Lock, trees: Trees) -> Lock:
    results: dict[str, str] = {}
    patching = Patching(trees, context.store, loaded, unpatched.components, results, context.notify)
    components: dict[str, lock_model.LockedComponent] = {}
    for name, component in unpatched.components.items():
        patches = lock_patches(patching, name, component.result)
        results[name] = patches[-1].tree if patches else component.result
        components[name] = replace(component, patches=patches, result=results[name])
    runtime = write_runtime(trees) if loaded.manifest.runtime else None
    patched = replace(unpatched, components=components, runtime=runtime)
    tree, _ = assemble.assemble(trees, patched, with_tree_patches=False)
    patches_of_tree = lock_patches(replace(patching, components=components), TREE, tree)
    return replace(patched, tree_patches=patches_of_tree)


def check_lock(found: Lock, expected: Lock) -> None:
    """Raise LockError with the differences between a lock and the one that its manifest produces now."""
    if lock_model.dump(found) == lock_model.dump(expected):
        return
    differing = []
    for name in dict.fromkeys([*found.components, *expected.components]):
        a, b = found.components.get(name), expected.components.get(name)
        if a is None or b is None:
            differing.append(f"{name} is only in the {'lock' if a else 'manifest'}")
        elif a != b:
            differing.append(f"{name}: {', '.join(_differing(a, b))}")
    differing += [key for key in _differing(found, expected) if key != "components"]
    raise LockError(
        "The lock does not match its manifest",
        why="These differ:\n" + "\n".join(differing or ["the order of components"]),
        hint="Make a new lock and commit it: npu-rl lock --manifest M",
    )


def _differing(one: Lock | lock_model.LockedComponent, other: Lock | lock_model.LockedComponent) -> list[str]:
    return [f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)]
