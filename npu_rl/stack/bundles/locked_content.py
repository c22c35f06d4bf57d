"""The content that a lock needs from a bundle: units of the store, texts of patches, sdists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from npu_rl.stack.bundles.bundle_names import PATCHES, SDISTS, UNITS, of_kind, unit_key_of
from npu_rl.stack.bundles.bundle_tar import TarFault
from npu_rl.stack.compose.composed_unit import runtime_key
from npu_rl.stack.lock.lock_model import Lock, LockedSource
from npu_rl.stack.sources.deliver import wanted_units


def units_of(lock: Lock) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the key of each unit that a lock needs -> its component, and the requested ids."""
    found = {
        wanted.request.key: (wanted.request.component, wanted.request.wants)
        for name, component in lock.components.items()
        for wanted in wanted_units(name, component)
    }
    if lock.runtime is not None:
        found[runtime_key(lock.runtime)] = ("npu_rl_runtime", (lock.runtime,))
    return found


def patches_of(lock: Lock) -> set[str]:
    """Return the SHA-256 of each patch of a lock."""
    return {patch.sha256 for _, patch in lock.patches()}


def sdists_of(lock: Lock) -> dict[str, LockedSource]:
    """Return the releases of components whose first source is an sdist, by component."""
    return {
        name: component.sources[0]
        for name, component in lock.components.items()
        if component.sources[0].pypi and component.sources[0].sha256
    }


def check_content(locks: Mapping[str, Lock], hashes: Mapping[str, str]) -> None:
    """Check that a bundle has the units, patches and sdists that its locks name, and no others.

    Args:
        hashes: SHA-256 of each member.

    Raises:
        TarFault: If it lacks one, or has one of another lock.
    """
    units = {unit_key_of(name) for name in of_kind(hashes, UNITS)}
    _compare("unit", units, {key for lock in locks.values() for key in units_of(lock)})
    patches = {name.partition("/")[2] for name in of_kind(hashes, PATCHES)}
    _compare("patch", patches, {sha256 for lock in locks.values() for sha256 in patches_of(lock)})
    wrong = [name for name in of_kind(hashes, PATCHES) if hashes[name] != name.partition("/")[2]]
    if wrong:
        raise TarFault(f"{wrong[0]} is not the text of its name")
    sdists = {hashes[name] for name in of_kind(hashes, SDISTS)}
    _compare("sdist", sdists, {s.sha256 or "" for lock in locks.values() for s in sdists_of(lock).values()})


def _compare(noun: str, found: Iterable[str], wanted: Iterable[str]) -> None:
    lacking, other = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if other:
        raise TarFault(f"it has the {noun} {other[0]}, which is of another lock")
    if lacking:
        raise TarFault(f"the {noun} {lacking[0]}, which its lock names, is missing")
