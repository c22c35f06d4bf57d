"""Installed versions compared with those of a lock of packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from npu_rl.stack.pylocks.pylock_file import LockedPackage, Pylock


def differing_packages(
    pylock: Pylock, installed: Mapping[str, str]
) -> Iterator[tuple[LockedPackage, str | None]]:
    """Yield each locked package that is missing, or installed in another version, with that version.

    Args:
        installed: Versions by canonical name, of what Python imports.
    """
    for package in pylock.packages:
        version = installed.get(package.name)
        if version is None or not is_wanted_version(version, package.version):
            yield package, version


def is_wanted_version(found: str, wanted: str) -> bool:
    """Return whether a version is the wanted one; a local one, 2.5.1+cpu, counts as 2.5.1."""
    try:
        return Version(found) == Version(wanted) or Version(Version(found).public) == Version(wanted)
    except InvalidVersion:
        return found == wanted
