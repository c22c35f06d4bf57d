"""The start of a port: the new version and the old patches are copied into its folder, which then needs no store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import EMPTY_TREE, FILE, TREE, Entry, short
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import LockedComponent
from npu_rl.stack.lock.packed_bytes import Allowance, MiB
from npu_rl.stack.port_series.locked_patches import OldPatch, check_lock, old_patches, series_of
from npu_rl.stack.port_series.port_folder import PortFolder
from npu_rl.stack.port_series.port_report import patch_count
from npu_rl.stack.port_series.port_state import PortedPatchState, PortState
from npu_rl.stack.port_series.port_work_tree import INPUT_REF, PortWorkTree, only
from npu_rl.stack.port_series.target_version import TargetRef, deliver_target, find_target
from npu_rl.stack.resolve.upstream_repository import Context

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

_COMMITTER = re.compile(rb"^committer .*> (\d{1,12}) [+-]\d{4}$", re.MULTILINE)


def begin(
    context: Context, loaded: LoadedManifest, component: str, to: str, folder: PortFolder, *, history: bool
) -> PortState:
    """Fetch both versions and write the initial state.

    Raises:
        UsageError, LockError, SourceError, PatchError, ComposeError: Nothing but the folder's mark is left then.
    """
    lock = lock_model.read(lock_model.lock_path(loaded.path))
    check_lock(loaded, lock, component)
    locked = lock.components[component]
    upstream, target = find_target(context, loaded, component, to)
    work = PortWorkTree(folder.tree)
    with (
        old_patches(context, lock, component) as (old, patches),
        deliver_target(upstream, target) as delivered,
    ):
        folder.mark()
        with folder.alone():
            work.create()
            lent = [one.repository for one in (old, delivered.trees)]
            objects = tuple(path for one in lent for path in (one.git_dir / "objects", *one.alternates))
            with Trees(Git(work.git_dir, alternates=objects)) as trees:
                trees.adopt(delivered.tree)
                message = f"{component} {target}\n\nWhat the manifest takes of {target.id}."
                base = work.commit(trees, delivered.tree, None, 0, message)
                inputs = [_kept(trees, number, patch) for number, patch in enumerate(patches)]
                work.anchor(
                    INPUT_REF, trees.put_all(EMPTY_TREE, [pair for _, kept in inputs for pair in kept])
                )
                work.anchor("refs/npu-rl/version", base)
            _tell(context, component, locked, target, len(patches), delivered.lacking)
            return folder.write(
                PortState(
                    component=component,
                    manifest=name_of(loaded),
                    is_bundled=loaded.bundled,
                    to=to,
                    ref=target.ref,
                    id=target.id,
                    version=target.version,
                    pin=locked.pin or target.id,
                    since=min(_seconds(delivered.commit), _seconds(_pinned_commit(locked))),
                    series=series_of(loaded, component),
                    base=base,
                    tree=delivered.tree,
                    patches=tuple(patch for patch, _ in inputs),
                    history=history,
                    lacking=tuple(delivered.lacking),
                )
            )


def name_of(loaded: LoadedManifest) -> str:
    """Return a manifest's bundled name, or the path of its file."""
    return loaded.manifest.name if loaded.bundled else str(loaded.path)


def _kept(trees: Trees, number: int, patch: OldPatch) -> tuple[PortedPatchState, list[tuple[str, Entry]]]:
    """Copy a patch, and its files before and after it; return its state, and the entries that keep them in git."""
    paths = [file.path for file in patch.patch.files]
    text = trees.write_object("blob", patch.text)
    before, after = only(trees, patch.before, paths), only(trees, patch.after, paths)
    for side in (before, after):
        trees.adopt(side)
    kept = {"patch": Entry(FILE, text), "before": Entry(TREE, before), "after": Entry(TREE, after)}
    state = PortedPatchState(patch.name, patch.file, text, before, after)
    return state, [(f"{number}/{name}", entry) for name, entry in kept.items()]


def _pinned_commit(component: LockedComponent) -> bytes:
    """Return the commit object of a pin, the first object of its proof."""
    return Allowance(each=8 * MiB, total=8 * MiB).unpack(component.proof[0]) if component.proof else b""


def _seconds(commit: bytes) -> int:
    found = _COMMITTER.search(commit)
    return int(found[1]) if found else 0


def _tell(
    context: Context, name: str, locked: LockedComponent, target: TargetRef, count: int, lacking: list[str]
) -> None:
    tell: list[str] = [f"{name}: {patch_count(count)} from {short(locked.pin or '')} to {target}"]
    if lacking:
        tell.append(f"note: {name} takes these paths, which {target} does not have: {', '.join(lacking)}")
    if locked.merges:
        refs = ", ".join(merge.ref for merge in locked.merges)
        tell.append(f"note: {name} merges {refs}; the patches are ported to {target} without that")
    if locked.submodules:
        tell.append(f"note: submodules of {name} are left out: patches of their files find no target")
    for line in tell:
        context.notify(line)
