"""Contradictions among the bounds that a stack's components declare: the smallest sets that no version satisfies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from npu_rl.stack.requirements.environments import Environment, applies, environments
from npu_rl.stack.requirements.version_ranges import exclude_each_other

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.requirements.bound_lines import Lines

_LARGEST_SET = 4  # bounds; of what components declare, none needed more
_MOST_BOUNDS = 24  # different ones of one package
_RELEASE = re.compile(r"\d+(\.\d+)*(\.\*)?")


@dataclass(frozen=True)
class BoundPlace:
    """The place of a declared bound; `line` is None if it is unknown."""

    component: str
    file: str
    line: int | None

    def __str__(self) -> str:
        return f"{self.component}/{self.file}" + (f":{self.line}" if self.line is not None else "")


@dataclass(frozen=True)
class PlacedBound:
    """A bound of one package, and each place that declares it with this text."""

    text: str
    specifier: SpecifierSet
    places: tuple[BoundPlace, ...]

    def __str__(self) -> str:
        return f'"{self.text}" ({", ".join(map(str, self.places))})'


@dataclass(frozen=True)
class Contradiction:
    """A minimal set of bounds on one package that no version satisfies."""

    package: str
    bounds: tuple[PlacedBound, ...]

    def __str__(self) -> str:
        *front, last = map(str, self.bounds)
        ways = "exclude each other" if len(self.bounds) == 2 else "can't be satisfied together"
        return f"{', '.join(front)} and {last} {ways}"


def contradictions(lock: Lock, lines: Lines) -> list[Contradiction]:
    """Return the contradictions among the bounds that a lock's components declare, smallest first, then by package.

    Only bounds count that meet in one of the host's environments. Of more than two bounds, sets are found of releases
    alone: whether a pre-release fits is left open, so that nothing is reported that a version could satisfy.
    """
    found: dict[tuple[str, frozenset[str]], Contradiction] = {}
    bounds = list(_declared(lock))
    for environment in environments(dict(lock.host).get("python")):
        for package, placed in _by_package(bounds, environment, lines).items():
            for members in _smallest_sets(placed):
                one = Contradiction(package, tuple(members))
                found.setdefault((package, frozenset(str(bound) for bound in members)), one)
    return sorted(found.values(), key=lambda one: (len(one.bounds), one.package, str(one)))


def _declared(lock: Lock) -> Iterator[tuple[str, str, str, Requirement]]:
    for name, component in lock.components.items():
        for file, texts in (component.declares or {}).items():
            for text in texts:
                yield name, file, text, Requirement(text)


def _by_package(
    bounds: Iterable[tuple[str, str, str, Requirement]], environment: Environment, lines: Lines
) -> dict[str, list[PlacedBound]]:
    """Return the bounds that apply in an environment, with equivalent ones merged."""
    places: dict[str, dict[SpecifierSet, tuple[str, list[BoundPlace]]]] = {}
    for component, file, text, requirement in bounds:
        if not applies(requirement.marker, environment):
            continue
        line = lines.get(component, {}).get(file, {}).get(text)
        of_package = places.setdefault(canonicalize_name(requirement.name), {})
        shown = f"{requirement.name}{requirement.specifier}"
        of_package.setdefault(requirement.specifier, (shown, []))[1].append(BoundPlace(component, file, line))
    return {
        package: [PlacedBound(text, one, tuple(at)) for one, (text, at) in found.items()]
        for package, found in places.items()
    }


def _smallest_sets(bounds: Sequence[PlacedBound]) -> Iterator[tuple[PlacedBound, ...]]:
    """Yield each minimal set of bounds that no version satisfies."""
    bounds = bounds[:_MOST_BOUNDS]
    found: list[set[int]] = []
    accepted = _accepted([one.specifier for one in bounds])
    for size in range(1, _LARGEST_SET + 1):
        for chosen in combinations(range(len(bounds)), size):
            if any(smaller <= set(chosen) for smaller in found):
                continue
            if _excluded(
                [bounds[number].specifier for number in chosen], [accepted[number] for number in chosen]
            ):
                found.append(set(chosen))
                yield tuple(bounds[number] for number in chosen)


def _excluded(specifiers: Sequence[SpecifierSet], accepted: Sequence[frozenset[Version] | None]) -> bool:
    """Return whether provably no version satisfies all of them."""
    if len(specifiers) == 2 and exclude_each_other(*specifiers):
        return True
    common: frozenset[Version] | None = None
    for one in accepted:
        if one is None:
            return False
        common = one if common is None else common & one
    return not common


def _accepted(specifiers: Sequence[SpecifierSet]) -> list[frozenset[Version] | None]:
    """Return which candidates each set accepts; None for a set with a version that is not a plain release.

    The candidates are every version that is named, its first pre-release and a post-release, and one directly above
    each: between two neighbours, all versions are alike to all sets.
    """
    plain = [all(_RELEASE.fullmatch(one.version) for one in each) for each in specifiers]
    named = {
        end
        for each, is_plain in zip(specifiers, plain, strict=True)
        if is_plain
        for one in each
        for end in _ends(one.version)
    }
    longest = max((len(release) for release in named), default=1)
    candidates = {Version("0"), Version("0.dev0")}
    for release in named:
        padded = [*release, *([0] * (longest - len(release)))]
        candidates |= {_version(padded, end) for end in ("", ".dev0", ".post1")} | {_version([*padded, 1])}
    return [
        frozenset(one for one in candidates if each.contains(one, prereleases=True)) if is_plain else None
        for each, is_plain in zip(specifiers, plain, strict=True)
    ]


def _ends(text: str) -> Iterator[tuple[int, ...]]:
    """Yield the range ends of a version: itself, and the ends of its prefixes."""
    try:
        release = Version(text.removesuffix(".*")).release
    except InvalidVersion:
        return
    yield release
    for length in range(1, len(release) + 1):
        yield (*release[: length - 1], release[length - 1] + 1)


def _version(release: Sequence[int], end: str = "") -> Version:
    return Version(".".join(map(str, release)) + end)


def taken_versions(loaded: LoadedManifest) -> dict[str, str]:
    """Return the version of each package that a manifest names, with its place, such as `ray==2.42.1 (a.yaml:8)`."""
    manifest = loaded.manifest
    found: dict[str, str] = {
        canonicalize_name(name): f"{name.replace('_', '-')} {version} ({loaded.where('host', name)})"
        for name, version in manifest.host.model_dump().items()
        if version is not None
    }
    for component, one in manifest.components.items():
        if one.dist is not None:
            place = loaded.where("components", component, "dist")
            found[canonicalize_name(one.dist.name)] = (
                f"the tree's {one.dist.name} {one.dist.version} ({place})"
            )
    for number, text in enumerate(manifest.requirements):
        name = canonicalize_name(Requirement(text).name)
        found[name] = f"{text.partition(';')[0].strip()} ({loaded.where('requirements', number)})"
    return found
