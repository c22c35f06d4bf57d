"""Proof that two sets of version specifiers (PEP 440) exclude each other, where one can be given."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_RELEASE = re.compile(r"(?:\d+!)?\d+(?:\.\d+)*(?:\.\*)?")


def exclude_each_other(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Return whether no version satisfies both sets; False if that can't be proven.

    Versions that either set names exactly are tried. Otherwise, of sets that name releases only, one version in each
    gap between the named ones is.
    """
    both = [*one, *other]
    exact = [version for specifier in both for version in _exact(specifier)]
    if exact:
        # ==2.7.0 takes 2.7.0+cpu, so each local version that is named is tried as well
        tried = [version for version in exact if version.public == exact[0].public]
    elif all(_RELEASE.fullmatch(specifier.version) for specifier in both):
        tried = [version for specifier in both for version in _around(specifier.version.removesuffix(".*"))]
        tried.append(Version("0.dev0"))
    else:
        return False
    return not any(
        one.contains(version, prereleases=True) and other.contains(version, prereleases=True)
        for version in tried
    )


def _exact(specifier: Specifier) -> Iterator[Version]:
    """Yield the version named by `==` or `===`, unless it is a wildcard."""
    if specifier.operator in ("==", "===") and not specifier.version.endswith(".*"):
        try:
            yield Version(specifier.version)
        except InvalidVersion:  # of ===, which compares texts
            return


def _around(text: str) -> Iterator[Version]:
    """Yield a version, one directly below and two directly above it, and those around the end of each prefix."""
    version = Version(text)
    release = version.release
    ends = [release, *((*release[:at], release[at] + 1) for at in range(len(release)))]
    for end in ends:
        shown = f"{version.epoch}!{'.'.join(map(str, end))}"
        yield from map(Version, (shown, f"{shown}.dev0", f"{shown}.post1", f"{shown}{'.0' * 9}.1"))
