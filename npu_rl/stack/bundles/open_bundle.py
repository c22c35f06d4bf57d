"""Use of a bundle: its files in a temporary folder, and a store made from them for one lock."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import BundleError, UsageError
from npu_rl.stack.bundles.bundle_file import FILES, MANIFESTS, UNITS, WHEELS, unpack_bundle
from npu_rl.stack.compose.composed_unit import runtime_key
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.sources.deliver import wanted_units
from npu_rl.stack.store import Store

_LOCK = ".lock.json"


@dataclass(frozen=True)
class OpenBundle:
    """A bundle whose files were unpacked and checked.

    Attributes:
        folder: The temporary folder with the files.
        locks: Digest of each lock -> the name of its manifest, and the manifest's file in the folder.
    """

    path: Path
    folder: Path
    locks: dict[str, tuple[str, Path]]

    @property
    def wheels(self) -> Path | None:
        """The folder of the packages to train with; None for a bundle without them."""
        folder = self.folder / WHEELS
        return folder if folder.is_dir() else None


@contextlib.contextmanager
def open_bundle(path: Path) -> Iterator[OpenBundle]:
    """Unpack a bundle into a temporary folder, which is removed at the end.

    Raises:
        BundleError: If the file is damaged, or is not a bundle.
        HostError: For errors of the disk.
        UsageError: If it does not exist.
    """
    if not path.exists():
        raise UsageError(
            "No such bundle",
            where=str(path.absolute()),
            hint="Create one: npu-rl bundle create MANIFEST -o FILE",
        )
    with tempfile.TemporaryDirectory(prefix="npu-rl-bundle-") as name:
        folder = Path(name)
        unpack_bundle(path, folder)
        locks = {}
        for place in sorted((folder / MANIFESTS).rglob(f"*{_LOCK}")):
            lock, digest = lock_model.parse_with_digest(lock_model.read_text(place), str(place))
            manifest = place.with_name(place.name.removesuffix(_LOCK) + ".yaml")
            locks[digest] = lock.manifest, manifest.relative_to(folder)
        yield OpenBundle(path, folder, locks)


def only_manifest(bundle: OpenBundle) -> str:
    """Return the name of the bundle's only manifest, if npu-rl ships it.

    Raises:
        UsageError: If the bundle has several manifests, or npu-rl does not ship its only one.
    """
    names = [name if name in bundled_manifests() else str(path) for name, path in bundle.locks.values()]
    if len(names) == 1 and names[0] in bundled_manifests():
        return names[0]
    raise UsageError(
        "Name the manifest to set up",
        where=str(bundle.path),
        why=f"The bundle has: {', '.join(names)}.",
        hint="--manifest NAME, or for one of your own its file, such as the one that tar unpacks from the bundle.",
    )


def require_lock(bundle: OpenBundle, lock: Lock) -> None:
    """Raise BundleError unless the bundle is made for a lock."""
    digest = lock_model.digest_of(lock)
    if digest not in bundle.locks:
        made = ", ".join(f"{name} {known[:12]}" for known, (name, _) in bundle.locks.items())
        raise BundleError(
            "The bundle is made for another lock",
            where=str(bundle.path),
            why=f"{lock.manifest} has the lock {digest[:12]}. The bundle is for: {made}.",
            hint="Use the npu-rl and the manifest that are in the bundle, or have a bundle made for this lock.",
        )


def units_of(lock: Lock) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the key of each unit of the store that a lock needs -> its component, and the requested ids."""
    found = {
        wanted.request.key: (wanted.request.component, wanted.request.wants)
        for name, component in lock.components.items()
        for wanted in wanted_units(name, component)
    }
    if lock.runtime is not None:
        found[runtime_key(lock.runtime)] = ("npu_rl_runtime", (lock.runtime,))
    return found


def bundled_store(bundle: OpenBundle, lock: Lock) -> Store:
    """Return a store in the bundle's folder with a lock's units and patches.

    Only packs come from the bundle. git builds their indexes from the objects themselves: an index from elsewhere
    could give an object the id of another.

    Raises:
        BundleError: If the bundle is made for another lock, or lacks objects or patches.
        HostError: For errors of the disk.
    """
    require_lock(bundle, lock)
    with disk_errors(bundle.folder):
        store = Store(bundle.folder / "sealed")
        for key, (component, wants) in units_of(lock).items():
            _lay_unit(store, bundle, key, component, wants)
        for sha256 in {patch.sha256 for _, patch in lock.patches()}:
            data = read_if_file(bundle.folder / FILES / sha256)
            if data is None or store.keep_file(data) != sha256:
                raise BundleError("The bundle lacks a patch that its lock names", where=sha256)
    return store


def _lay_unit(store: Store, bundle: OpenBundle, key: str, component: str, wants: tuple[str, ...]) -> None:
    with store.quarantine() as folder:
        repository = Git(folder)
        try:
            for pack in sorted((bundle.folder / UNITS / key).glob("*.pack")):
                repository.run("index-pack", str(pack.rename(folder / "objects" / "pack" / pack.name)))
            repository.run("rev-list", "--objects", "--quiet", "--stdin", input="\n".join(wants).encode())
        except GitError as error:
            raise BundleError(
                f"A unit of the bundle does not have the objects of {component}",
                where=str(bundle.path),
                why=error.stderr.strip().splitlines()[-1] if error.stderr.strip() else str(error),
                hint="Make the bundle again.",
            ) from error
        facts = {"component": component, "wants": list(wants), "source": bundle.path.name, "step": "bundle"}
        store.publish(folder, key, facts)
