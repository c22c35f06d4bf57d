"""From a manifest to its lock."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from npu_rl.compose import assemble
from npu_rl.compose.build import compose, taken_paths
from npu_rl.compose.prepare import composed
from npu_rl.compose.runtime import write_runtime
from npu_rl.compose.texts import locked_text
from npu_rl.compose.trees import Trees
from npu_rl.errors import LockError
from npu_rl.git import Git
from npu_rl.locking.component import lock_component
from npu_rl.locking.patches import lock_patches
from npu_rl.locking.upstream import Context
from npu_rl.manifest import lock
from npu_rl.manifest.lock import Lock
from npu_rl.sources.deliver import Deliverer
from npu_rl.store import Unit

if TYPE_CHECKING:
    from npu_rl.manifest.load import LoadedManifest


def build_lock(
    context: Context,
    loaded: LoadedManifest,
    *,
    earlier: Lock | None = None,
    keep: Collection[str] = (),
    jobs: int = 6,
) -> Lock:
    """Resolve, merge, patch and assemble. keep: components whose ids stay as `earlier` has them.

    Raises every NpuRlError; nothing is written but the store.
    """
    manifest = loaded.manifest
    kept = {n: earlier.components.get(n) for n in keep} if earlier is not None else {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = {
            name: pool.submit(lock_component, context, name, spec, kept.get(name))
            for name, spec in manifest.components.items()
        }
        components = {name: future.result() for name, future in futures.items()}
    unfinished = Lock(
        lock_format=lock.LOCK_FORMAT,
        manifest=manifest.name,
        title=manifest.title,
        device=manifest.device,
        manifest_digest=loaded.digest,
        manifest_files=dict(loaded.files),
        components=components,
        tree="",
        commit="",
        requirements=tuple(manifest.requirements),
        host={k: v for k, v in manifest.host.model_dump().items() if v is not None},
        env=dict(manifest.env),
    )
    deliveries = Deliverer(context.store, context.network, context.beside, context.watcher).deliver(
        unfinished, jobs
    )
    units = [unit for delivery in deliveries.values() for unit in delivery.units]
    patched = _patch(context, loaded, unfinished, units)
    done = composed(context.store, patched, units, context.beside, check=False)
    context.store.discard(done.unit)  # its key is that of a lock without ids
    return replace(patched, tree=done.tree, commit=done.commit)


def _patch(context: Context, loaded: LoadedManifest, unfinished: Lock, units: list[Unit]) -> Lock:
    with context.store.quarantine() as folder:
        trees = Trees(Git(folder, alternates=tuple(u.objects for u in units)))
        try:
            _replay_merges(context, trees, unfinished)
            components: dict[str, lock.Component] = {}
            results: dict[str, str] = {}
            for name, component in unfinished.components.items():
                patches = lock_patches(
                    trees, context.store, loaded, loaded.manifest.components[name].patches,
                    component.result, name, taken_paths(component), results,
                )  # fmt: skip
                result = patches[-1].tree if patches else component.result
                components[name] = replace(component, patches=patches, result=result)
                results[name] = result
            runtime = write_runtime(trees) if loaded.manifest.runtime else None
            patched = replace(unfinished, components=components, runtime=runtime)
            tree, _ = assemble.assemble(trees, patched, with_tree_patches=False)
            whole = lock_patches(
                trees, context.store, loaded, loaded.manifest.tree.patches, tree, "tree", (".",), results
            )
        finally:
            trees.close()
    return replace(patched, tree_patches=whole)


def _replay_merges(context: Context, trees: Trees, unfinished: Lock) -> None:
    """Make the merged trees in this object database too."""
    compose(
        trees, unfinished, lambda patch, done: locked_text(patch, context.beside, context.store, trees, done)
    )


def check_lock(found: Lock, expected: Lock) -> None:
    """Raise LockError naming what differs between a lock and what its manifest gives now."""
    if lock.dump(found) == lock.dump(expected):
        return
    differing = [
        f"{name}: " + ("only in the lock" if b is None else "not in the lock" if a is None else "differs")
        for name in dict.fromkeys([*found.components, *expected.components])
        for a, b in [(found.components.get(name), expected.components.get(name))]
        if a != b
    ]
    for key in (
        "manifest_digest",
        "runtime",
        "tree_patches",
        "tree",
        "commit",
        "requirements",
        "env",
        "host",
    ):
        if getattr(found, key) != getattr(expected, key):
            differing.append(f"{key} differs")
    raise LockError(
        "The lock is not what its manifest gives",
        why="\n".join(differing) or "Its manifest files have changed.",
        hint="Make it anew and commit it: npu-rl lock --manifest M",
    )
