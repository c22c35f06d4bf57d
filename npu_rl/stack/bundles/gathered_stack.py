"""The files of one manifest for a bundle, from the store (missing objects are fetched) and the manifest's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import LARGEST, read_file
from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import BundleError, LockError
from npu_rl.stack.bundles.bundle_names import MANIFESTS, PATCHES, SDISTS, UNITS
from npu_rl.stack.bundles.bundle_tar import Bytes, Content, FileContent
from npu_rl.stack.bundles.locked_content import patches_of, sdists_of, units_of
from npu_rl.stack.compose.composed_unit import composed, runtime_unit
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.manifest.load_manifest import LoadedManifest
from npu_rl.stack.sources.deliver import Deliverer
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Watcher
from npu_rl.stack.sources.sdist_unit import locked_archive
from npu_rl.stack.store import Store

_BUNDLED = "bundled:"


@dataclass(frozen=True)
class StackFiles:
    """One manifest's part of a bundle.

    Attributes:
        digest: The lock's digest.
        path: The member with the manifest's file.
        shipped: Whether npu-rl ships the manifest.
    """

    lock: Lock
    digest: str
    path: str
    shipped: bool
    members: dict[str, Content]


def gather(
    store: Store, loaded: LoadedManifest, network: Network, watcher: Watcher, staging: Path, *, jobs: int
) -> StackFiles:
    """Fetch everything that a manifest's lock names into the store, compose it, and return the files for a bundle.

    Args:
        staging: A folder for sdists, which stay there until the bundle is written.

    Raises:
        LockError: If the manifest has no lock, or has changed since.
        SourceError: If no source delivers something.
        ComposeError, PatchError: If the lock can't be composed.
    """
    lock, text = _lock(loaded)
    deliveries = Deliverer(store, network, loaded.path.parent, watcher).deliver(lock, jobs)
    units = list(dict.fromkeys(unit for delivery in deliveries.values() for unit in delivery.units))
    made = composed(store, lock, units, loaded.path.parent)
    members: dict[str, Content] = dict(_packs(store, lock))
    for sha256 in patches_of(lock):
        members[f"{PATCHES}/{sha256}"] = Bytes(_patch(made.facts["texts"][sha256], sha256))
    for name, source in sdists_of(lock).items():
        folder = staging / f"sdist-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        folder.mkdir(exist_ok=True)
        sdist = locked_archive(store, name, source, network, watcher, folder)
        members[f"{SDISTS}/{sdist.filename}"] = FileContent(sdist.path)
    shipped = bundled_manifests().get(loaded.path.stem) == loaded.path
    files = dict(_manifest_files(loaded, text))
    members |= {name: Bytes(data) for name, data in files.items()}
    return StackFiles(lock, lock_model.digest_of(lock), next(iter(files)), shipped, members)


def _lock(loaded: LoadedManifest) -> tuple[Lock, str]:
    place = lock_model.lock_path(loaded.path)
    text = lock_model.read_text(place)
    lock = lock_model.parse(text, str(place))
    if lock.manifest_digest != loaded.digest:
        raise LockError(
            f"{loaded.path.name} has changed since its lock was made",
            where=str(place),
            hint=f"Make a new lock: npu-rl lock --manifest {loaded.path}",
        )
    return lock, text


def _packs(store: Store, lock: Lock) -> Iterator[tuple[str, Content]]:
    runtime_unit(store, lock)  # makes it if the store does not have it
    for key, (component, _) in units_of(lock).items():
        unit = store.find(key)
        if unit is None:
            raise BundleError(
                f"The store does not have {component} as locked",
                where=str(store.root),
                hint="Use the npu-rl that made the lock, or make a new lock: npu-rl lock --manifest M",
            )
        for number, pack in enumerate(unit.packs()):
            yield f"{UNITS}/{key}/{number:02}.pack", FileContent(pack)


def _patch(text: str, sha256: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise BundleError("The store has another text of a patch than the lock", where=sha256)
    return data


def _manifest_files(loaded: LoadedManifest, lock: str) -> Iterator[tuple[str, bytes]]:
    """Yield the members with the manifest, its lock and its parents, at the same relative paths as on disk."""
    folder = loaded.path.parent
    parents = [
        Path(os.path.normpath(folder / name))
        for name in loaded.files
        if not name.startswith(_BUNDLED) and os.path.normpath(folder / name) != str(loaded.path)
    ]
    top = Path(os.path.commonpath([folder, *(path.parent for path in parents)]))
    names = f"{MANIFESTS}/{loaded.manifest.name}"

    def member(path: Path) -> str:
        return f"{names}/{path.relative_to(top).as_posix()}"

    yield member(loaded.path), read_file(loaded.path, LARGEST)
    yield member(lock_model.lock_path(loaded.path)), lock.encode()
    for path in parents:
        yield member(path), read_file(path, LARGEST)
