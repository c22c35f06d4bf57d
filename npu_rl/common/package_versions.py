"""Comparison of installed packages with the wanted ones: for doctor, train, install and verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def fits(found: str, wanted: str) -> bool:
    """Return whether a version is the wanted one; a local one, 2.5.1+cpu, counts as 2.5.1.

    Args:
        wanted: A version, or bounds such as `>=2.5,<3`; "" for any version.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(f"=={wanted}" if wanted[:1].isdigit() else wanted).contains(
            found, prereleases=True
        )
    except (InvalidSpecifier, InvalidVersion):
        return found == wanted


def is_older(found: str, wanted: str) -> bool:
    """Return whether a version, such as Huawei's 25.0.RC1, comes before another; False if they can't be ordered."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(found) < Version(wanted)
    except InvalidVersion:
        return False


def lacking_packages(
    installed: Mapping[str, str | None], requirements: Iterable[str]
) -> list[tuple[Requirement, str | None]]:
    """Return the requirements (PEP 508) that an interpreter like this one does not fulfil, and what it has of each.

    Args:
        installed: Versions by canonical name.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lacking = []
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        found = installed.get(canonicalize_name(wanted.name))
        if found is None or not fits(found, str(wanted.specifier)):
            lacking.append((wanted, found))
    return lacking
