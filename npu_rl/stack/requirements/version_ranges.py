"""Proof that two sets of version specifiers (PEP 440) exclude each other, where one can be given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version


class _Range(NamedTuple):
    """Public versions from `low` to `high`; a strict side excludes its end."""

    low: Version | None = None
    low_strict: bool = False
    high: Version | None = None
    high_strict: bool = False


def exclude_each_other(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Return whether no version satisfies both sets; False if that can't be proven.

    Versions that either set names exactly are tried. For ranges, the ends are compared, and `!=` is ignored.
    """
    exact = [*_exact(one), *_exact(other)]
    if len(exact) == 1:  # the most frequent case, which needs no comparison of public versions
        return not _both(one, other, exact[0])
    if exact:
        # ==2.7.0 takes 2.7.0+cpu, so each local version that is named is tried as well
        tried = [version for version in exact if version.public == exact[0].public]
        return not any(_both(one, other, version) for version in tried)
    ranges = [_range(specifier) for specifier in (*one, *other)]
    return any(_ends_before(a, b) for a in ranges for b in ranges)


def _both(one: SpecifierSet, other: SpecifierSet, version: Version) -> bool:
    return one.contains(version, prereleases=True) and other.contains(version, prereleases=True)


def _exact(specifiers: Iterable[Specifier]) -> Iterator[Version]:
    """Yield the versions named by `==` or `===`, except wildcards."""
    for specifier in specifiers:
        if specifier.operator in ("==", "===") and not specifier.version.endswith(".*"):
            try:
                yield Version(specifier.version)
            except InvalidVersion:  # of ===, which compares texts
                continue


def _range(specifier: Specifier) -> _Range:
    """Return the range of a specifier; it may be wider than the specifier, but never narrower."""
    operator, text = specifier.operator, specifier.version
    if operator == "==" and text.endswith(".*"):
        return _prefix(text[:-2])
    if operator not in (">=", ">", "<=", "<", "~="):
        return _Range()
    version = Version(text)
    if operator == "~=":
        release = version.release[:-1]
        prefix = _prefix(f"{version.epoch}!{'.'.join(map(str, release))}")
        return prefix._replace(low=version)
    if operator.startswith(">"):
        return _Range(low=version, low_strict=operator == ">")
    if operator == "<" and not (version.is_prerelease or version.is_postrelease):
        version = Version(f"{text}.dev0")  # <2 takes no pre-release of 2
    return _Range(high=version, high_strict=operator == "<")


def _prefix(text: str) -> _Range:
    """Return the range of `==TEXT.*`."""
    version = Version(text)
    if version.is_prerelease or version.is_postrelease:
        return _Range()
    *front, last = version.release
    after = ".".join(map(str, (*front, last + 1)))
    return _Range(Version(f"{text}.dev0"), False, Version(f"{version.epoch}!{after}.dev0"), True)


def _ends_before(one: _Range, other: _Range) -> bool:
    if one.high is None or other.low is None:
        return False
    strict = one.high_strict or other.low_strict
    return one.high < other.low or (strict and one.high == other.low)
