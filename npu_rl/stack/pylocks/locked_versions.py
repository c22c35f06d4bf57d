"""Installed versions compared with those of a lock of packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from npu_rl.common.package_versions import fits

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
        if version is None or not fits(version, package.version):
            yield package, version
