"""A temporary store with a bundle's content for one lock."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import BundleError, UsageError
from npu_rl.stack.bundles.bundle_names import PATCHES, UNITS, WHEELS, of_kind
from npu_rl.stack.bundles.locked_content import patches_of, units_of
from npu_rl.stack.bundles.read_bundle import OpenBundle
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.store import Store

_SEAL = 20  # bytes at the end of a pack: the SHA-1 of what is before


@contextlib.contextmanager
def bundled_store(bundle: OpenBundle, lock: Lock) -> Iterator[Store]:
    """Provide a temporary store with the lock's units and patches.

    Only a unit's packs come from the bundle. git builds their indexes from the objects themselves: an index from
    elsewhere could give an object the id of another.

    Raises:
        BundleError: If the bundle is made for another lock, or a unit lacks objects.
        HostError: For errors of the disk.
    """
    require_lock(bundle, lock)
    with tempfile.TemporaryDirectory(prefix="npu-rl-bundle-") as name:
        with disk_errors(Path(name)):
            store = Store(Path(name) / "store")
            for key, (component, wants) in units_of(lock).items():
                _lay_unit(store, bundle, key, component, wants)
            for sha256 in patches_of(lock):
                store.keep_file(bundle.read(f"{PATCHES}/{sha256}"))
        yield store


def require_lock(bundle: OpenBundle, lock: Lock) -> None:
    """Raise BundleError unless the bundle is made for a lock."""
    digest = lock_model.digest_of(lock)
    if bundle.lock_of(digest) is None:
        made = ", ".join(f"{one.name} {one.lock[:12]}" for one in bundle.facts.stacks)
        raise BundleError(
            "The bundle is made for another lock",
            where=str(bundle.path),
            why=f"{lock.manifest} has the lock {digest[:12]}. The bundle is for: {made}.",
            hint="Use the npu-rl and the manifest that are in the bundle, as `npu-rl bundle show` prints, "
            "or have a bundle made for this lock.",
        )


@contextlib.contextmanager
def bundled_wheels(bundle: OpenBundle) -> Iterator[Path | None]:
    """Provide a folder with a bundle's packages until the end, or None without packages.

    Raises:
        BundleError: If the file has changed since it was proven.
        HostError: For errors of the disk.
    """
    names = of_kind(bundle.facts.sizes, WHEELS)
    if not names:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="npu-rl-bundle-") as folder:
        with disk_errors(Path(folder)):
            for name in names:
                with (Path(folder) / name.rpartition("/")[2]).open("xb") as file:
                    file.writelines(bundle.chunks(name))
        yield Path(folder)


def shipped_manifest(bundle: OpenBundle) -> str:
    """Return the name of the bundle's only manifest, if npu-rl ships it.

    Raises:
        UsageError: If the bundle has several manifests, or npu-rl does not ship its only one.
    """
    stacks = bundle.facts.stacks
    if len(stacks) == 1 and stacks[0].shipped:
        return stacks[0].name
    names = ", ".join(stack.name if stack.shipped else stack.path for stack in stacks)
    raise UsageError(
        "Name the manifest to set up",
        where=str(bundle.path),
        why=f"The bundle has: {names}.",
        hint="--manifest NAME, or for one of your own its file, which the first line of `npu-rl bundle show` unpacks.",
    )


def _lay_unit(store: Store, bundle: OpenBundle, key: str, component: str, wants: tuple[str, ...]) -> None:
    packs = [one for one in sorted(bundle.hashes) if one.startswith(f"{UNITS}/{key}/")]
    with store.quarantine() as folder:
        repository = Git(folder)
        try:
            for one in packs:
                repository.run("index-pack", str(_lay_pack(bundle, one, folder / "objects" / "pack")))
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


def _lay_pack(bundle: OpenBundle, member: str, folder: Path) -> Path:
    """Write a pack under the name that git would give it: the SHA-1 at its end."""
    written = folder / "incoming"
    last = b""
    with written.open("wb") as file:
        for chunk in bundle.chunks(member):
            file.write(chunk)
            last = (last + chunk)[-_SEAL:]
    return written.rename(folder / f"pack-{last.hex()}.pack")
