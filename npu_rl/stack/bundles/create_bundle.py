"""Creation of a bundle from the store (missing objects are fetched), the manifests' folders, and downloaded wheels."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import npu_rl
from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import BundleError, LockError, UsageError
from npu_rl.stack.bundles.bundle_file import (
    FILES,
    MANIFESTS,
    PROGRAM,
    UNITS,
    WHEELS,
    is_member_name,
    write_bundle,
)
from npu_rl.stack.bundles.bundled_packages import download_packages
from npu_rl.stack.bundles.open_bundle import units_of
from npu_rl.stack.compose.composed_unit import composed, runtime_unit
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.manifest.load_manifest import LoadedManifest
from npu_rl.stack.pylocks.committed_pylock import committed_pylock
from npu_rl.stack.pylocks.pylock_targets import Target, pylock_path
from npu_rl.stack.sources.deliver import Deliverer
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Watcher
from npu_rl.stack.store import Store

Program = Callable[[Sequence[Target], Path], None]
"""Writes npu-rl's wheel and those that it needs on the targets into a folder."""

_BUNDLED = "bundled:"
_START, _ENVIRONMENT = "npu-rl-start", "npu-rl-env"


class OrderedManifest(NamedTuple):
    """A manifest for a bundle, as the user named it, and the hosts that its packages are for."""

    named: str
    loaded: LoadedManifest
    targets: Sequence[Target]


@dataclass(frozen=True)
class CreatedBundle:
    """The result of `bundle create`.

    Attributes:
        start: Command lines that set up the first manifest on a host with only Python, tar and git.
    """

    path: Path
    bytes: int
    start: tuple[str, ...]


def create_bundle(
    ordered: Sequence[OrderedManifest],
    output: Path,
    network: Network,
    watcher: Watcher,
    program: Program,
    *,
    wheels: bool = False,
    jobs: int = 8,
) -> CreatedBundle:
    """Make a bundle. Missing objects are fetched into the store, and each stack is composed once to prove it.

    Args:
        output: The file, which must not exist.
        wheels: Whether to include the packages locked beside the manifests.

    Raises:
        UsageError: If the file exists, or two manifests have one name.
        BundleError: If a file's name can't be that of a member.
        LockError: If a manifest or its packages are not locked.
        SourceError: If something can't be fetched.
    """
    _check(ordered, output)
    store = Store()
    store.sweep()
    folder = output.absolute().parent
    with disk_errors(folder), tempfile.TemporaryDirectory(prefix=".npu-rl-bundle-", dir=folder) as name:
        staging = Path(name)
        for kind in (FILES, PROGRAM, WHEELS):
            (staging / kind).mkdir(parents=True)
        members: dict[str, Path] = {}
        for _, loaded, _ in ordered:
            members |= _store_members(store, loaded, network, watcher, staging, jobs)
            members |= _manifest_members(loaded)
        program(_program_targets(ordered), staging / PROGRAM)
        if wheels:
            members |= _add_packages(ordered, staging / WHEELS, offline=network.offline)
        for kind in (FILES, PROGRAM, WHEELS):
            members |= {f"{kind}/{path.name}": path for path in (staging / kind).iterdir()}
        _check_names(members)
        write_bundle(staging / "bundle.tar", members)
        (staging / "bundle.tar").rename(output)
    start = _start_lines(ordered[0], output, members, installer=wheels)
    return CreatedBundle(output, output.stat().st_size, start)


def _check(ordered: Sequence[OrderedManifest], output: Path) -> None:
    if os.path.lexists(output):
        raise UsageError(
            "The file exists", where=str(output), hint="Remove it, or choose another with --output."
        )
    if not output.absolute().parent.is_dir():
        raise UsageError("The folder does not exist", where=str(output.parent), hint="Create it: mkdir -p")
    names = [one.loaded.manifest.name for one in ordered]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"Two of the manifests have the name {twice[0]}", hint="Make a bundle of each.")


def _check_names(members: Mapping[str, Path]) -> None:
    for name, path in members.items():
        if not is_member_name(name):
            raise BundleError(
                "A bundle can't have a file of this name",
                where=str(path),
                why="Names of manifests in it have letters, digits and _ . + ! - only.",
                hint="Rename the file.",
            )


def _store_members(
    store: Store, loaded: LoadedManifest, network: Network, watcher: Watcher, staging: Path, jobs: int
) -> Iterator[tuple[str, Path]]:
    """Yield the packs and patches of a manifest's lock, after composing it."""
    lock = _lock(loaded)
    deliveries = Deliverer(store, network, watcher).deliver(lock, jobs)
    units = list(dict.fromkeys(unit for delivery in deliveries.values() for unit in delivery.units))
    made = composed(store, lock, units, loaded.path.parent)
    runtime_unit(store, lock)  # makes it if the store does not have it
    for key, (component, _) in units_of(lock).items():
        unit = store.find(key)
        if unit is None:
            raise BundleError(
                f"The store does not have {component} as locked",
                where=str(store.root),
                hint="Use the npu-rl that made the lock, or make a new lock: npu-rl lock --manifest M",
            )
        for pack in unit.packs():
            yield f"{UNITS}/{key}/{pack.name}", pack
    for sha256 in {patch.sha256 for _, patch in lock.patches()}:
        text: str = made.facts["texts"][sha256]
        (staging / FILES / sha256).write_bytes(text.encode("utf-8", "surrogateescape"))


def _lock(loaded: LoadedManifest) -> Lock:
    place = lock_model.lock_path(loaded.path)
    lock = lock_model.read(place)
    if lock.manifest_digest != loaded.digest:
        raise LockError(
            f"{loaded.path.name} has changed since its lock was made",
            where=str(place),
            hint=f"Make a new lock: npu-rl lock --manifest {shlex.quote(str(loaded.path))}",
        )
    return lock


def _manifest_members(loaded: LoadedManifest) -> Iterator[tuple[str, Path]]:
    """Yield the manifest, its lock and its parents, at the same relative paths as on disk."""
    folder = loaded.path.parent
    parents = {
        Path(os.path.normpath(folder / name)) for name in loaded.files if not name.startswith(_BUNDLED)
    }
    top = Path(os.path.commonpath([folder, *(path.parent for path in parents)]))
    for path in (loaded.path, lock_model.lock_path(loaded.path), *parents):
        yield f"{MANIFESTS}/{loaded.manifest.name}/{path.relative_to(top).as_posix()}", path


def _program_targets(ordered: Sequence[OrderedManifest]) -> list[Target]:
    """Return one target for each Python and machine among the manifests' hosts, with the oldest glibc among them."""
    every = sorted((target for one in ordered for target in one.targets), key=_glibc, reverse=True)
    return list({(target.python, target.machine): target for target in every}.values())


def _glibc(target: Target) -> tuple[int, ...]:
    return tuple(map(int, target.glibc.split(".")))


def _add_packages(ordered: Sequence[OrderedManifest], folder: Path, *, offline: bool) -> dict[str, Path]:
    """Download the locked packages; return the locks of those that npu-rl does not ship, as members."""
    members = {}
    for named, loaded, targets in ordered:
        for target in targets:
            download_packages(committed_pylock(loaded, target, named), folder, offline=offline)
            if not _is_shipped(loaded):
                path = pylock_path(loaded.path, target)
                members[f"{_own_member(loaded).rpartition('/')[0]}/{path.name}"] = path
    return members


def _own_member(loaded: LoadedManifest) -> str:
    return next(name for name, path in _manifest_members(loaded) if path == loaded.path)


def _is_shipped(loaded: LoadedManifest) -> bool:
    return bundled_manifests().get(loaded.path.stem) == loaded.path


def _start_lines(
    first: OrderedManifest, output: Path, members: Iterable[str], *, installer: bool
) -> tuple[str, ...]:
    """Return the lines that unpack the bundle's wheels, make an environment of them, and set up the first manifest."""
    file = shlex.quote(output.name)
    pip = next(name for name in sorted(members) if name.startswith(f"{PROGRAM}/pip-"))
    wanted = shlex.quote(f"npu-rl{'[uv]' if installer else ''}=={npu_rl.__version__}")
    loaded = first.loaded
    manifest = loaded.manifest.name if _is_shipped(loaded) else f"{_START}/{_own_member(loaded)}"
    return (
        f"mkdir {_START} && tar -xf {file} -C {_START} {PROGRAM} {MANIFESTS}",
        f"python{first.targets[0].python} -m venv --without-pip {_ENVIRONMENT} && {_ENVIRONMENT}/bin/python"
        f" {_START}/{pip}/pip install -q --no-index --find-links {_START}/{PROGRAM} {wanted}",
        f". {_ENVIRONMENT}/bin/activate && npu-rl setup --manifest {manifest} --bundle {file}",
    )
