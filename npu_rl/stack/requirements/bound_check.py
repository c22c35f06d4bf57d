"""Comparison of the components' declared bounds with a manifest's versions and `overrides`."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, combinations
from typing import TYPE_CHECKING, NamedTuple

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.stack.requirements.environments import Environment, applies, can_judge, environments, python_range
from npu_rl.stack.requirements.reading import PYTHON
from npu_rl.stack.requirements.version_ranges import exclude_each_other

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock, LockedComponent
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.manifest.schema import Component as Spec
    from npu_rl.stack.manifest.schema import Override

_NAME = re.compile(r"[^A-Za-z0-9._-]")
HOST_PACKAGES = ("torch", "torch_npu", "torchvision", "torchaudio", "triton_ascend")
_MOST_OF_ONE = 16  # versions of one package: each is compared with every other, and with every bound
_ABSENT = "its marker is false on the manifest's host, so it is not required"


@dataclass
class Comparison:
    """The result of a comparison.

    Attributes:
        compared: How many declared bounds were compared with an installed version.
        errors: Versions that exclude each other, broken bounds without an override, and overrides without a broken
            bound; each with its place.
        notes: Bounds that were not compared, and overrides of a parent without a broken bound.
    """

    compared: int = 0
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Installed(NamedTuple):
    """The version, or range of versions, of a package in the stack."""

    package: str
    text: str
    specifier: SpecifierSet
    marker: Marker | None
    place: str


class _Bound(NamedTuple):
    """A bound that a component declares."""

    component: str
    file: str
    package: str
    text: str
    specifier: SpecifierSet
    marker: Marker | None


def compare_bounds(loaded: LoadedManifest, lock: Lock) -> Comparison:
    """Compare the components' bounds in a lock with its manifest. Nothing is fetched."""
    found = Comparison()
    if loaded.digest != lock.manifest_digest:
        found.notes.append(
            f"{loaded.path.name} has changed since its lock was made, whose bounds are compared"
        )
    components = dict(_comparable(loaded, lock, found))
    stack_environments = environments(loaded.manifest.host.python)
    files = [texts for one in components.values() for texts in (one.declares or {}).values()]
    declared = {_package(text) for texts in files for text in texts}
    overridden = {canonicalize_name(override.package) for override in loaded.manifest.overrides}
    installed: dict[str, list[_Installed]] = {}
    required = _required(loaded, stack_environments, declared | overridden, found)
    for one in (*required, *_of_host_and_tree(loaded)):
        installed.setdefault(one.package, []).append(one)
    for package, each in installed.items():
        if len(each) > _MOST_OF_ONE:
            found.notes.append(f"{package} is named {len(each)} times; the first {_MOST_OF_ONE} are compared")
            del each[_MOST_OF_ONE:]
    for first, second in chain.from_iterable(combinations(each, 2) for each in installed.values()):
        if exclude_each_other(first.specifier, second.specifier) and _meet(first, second, stack_environments):
            found.errors.append(_conflict(first, second))
    broken: list[tuple[_Bound, _Installed]] = []
    packages = {*installed, *overridden}
    bounds = [bound for name, component in components.items() for bound in _bounds(name, component, packages)]
    for bound in bounds:
        against = [one for one in installed.get(bound.package, ()) if _meet(bound, one, stack_environments)]
        found.compared += bool(against)
        broken += [(bound, one) for one in against if exclude_each_other(one.specifier, bound.specifier)]
    named = {_key(override) for override in loaded.manifest.overrides}
    for bound, one in broken:
        if (bound.component, bound.file, bound.package, bound.specifier) not in named:
            found.errors.append(_unnamed(bound, one))
    for number, override in enumerate(loaded.manifest.overrides):
        reason = ""
        if override.component in components:
            reason = _why_wrong(override, components[override.component], bounds, broken, installed)
        elif override.component not in loaded.manifest.components:
            near = did_you_mean(override.component, list(loaded.manifest.components))
            reason = f"unknown component {override.component!r}{near}"
        if reason and loaded.is_inherited("overrides", number):  # of what this manifest has changed
            reason = reason.partition("; fix: ")[0]
            found.notes.append(f"{loaded.where('overrides', number)}: no longer needed: {reason}")
        elif reason:
            found.errors.append(f"{loaded.where('overrides', number)}: overrides[{number}]: {reason}")
    return found


def _comparable(
    loaded: LoadedManifest, lock: Lock, found: Comparison
) -> Iterator[tuple[str, LockedComponent]]:
    """Yield the components whose bounds were locked at the manifest's pin; add a note for the others."""
    older = []
    for name, spec in loaded.manifest.components.items():
        component = lock.components.get(name)
        if component is None or _other_pin(spec, component):
            found.notes.append(f"{name}: its requirements were not compared: its pin is not the lock's")
        elif component.declares is None:
            older.append(name)
        else:
            found.notes += [f"{name}: not read, so not compared: {reason}" for reason in component.unread]
            yield name, component
    if older:
        found.notes.append(
            f"{', '.join(older)}: requirements were not compared: the lock is of an earlier npu-rl; lock it again"
        )


def _other_pin(spec: Spec, component: LockedComponent) -> bool:
    wanted = {path: module.ref for path, module in spec.submodules.items()}
    locked = {module.path: module.pin for module in component.submodules}
    releases = [source.pypi for source in spec.sources] == [source.pypi for source in component.sources]
    return (spec.ref, wanted) != (component.ref, locked) or not releases


def _package(text: str) -> str:
    """Return the package of a requirement without parsing it, which would take a tenth of a millisecond."""
    return canonicalize_name(_NAME.split(text.lstrip(), maxsplit=1)[0])


@lru_cache(maxsize=512)
def _parsed(text: str) -> Requirement:
    """Return a parsed requirement, cached because files of a component have many in common."""
    return Requirement(text)


def _required(
    loaded: LoadedManifest,
    stack_environments: Sequence[Environment],
    bounded: Container[str],
    found: Comparison,
) -> list[_Installed]:
    """Return the host's requirements with a version; add a note for bounded packages without one."""
    required: list[_Installed] = []
    unknown: list[tuple[str, str, str]] = []
    for number, text in enumerate(loaded.manifest.requirements):
        package, requirement = _package(text), _parsed(text)
        place = loaded.where("requirements", number)
        reason = _why_unknown(requirement, stack_environments)
        if reason:
            unknown.append((package, place, reason))
        elif requirement.specifier:
            shown = text.partition(";")[0].strip()
            required.append(_Installed(package, shown, requirement.specifier, requirement.marker, place))
    known = {one.package for one in required}
    for package, place, reason in unknown:
        if package in bounded and (reason != _ABSENT or package not in known):
            found.notes.append(f"{place}: {package}: not compared: {reason}")
    return required


def _why_unknown(requirement: Requirement, stack_environments: Sequence[Environment]) -> str:
    """Return why the version of a requirement can't be compared; empty if it can."""
    if requirement.marker is not None and not can_judge(requirement.marker):
        return "its marker can't be judged"
    if not any(applies(requirement.marker, each) for each in stack_environments):
        return _ABSENT
    return "it comes from a URL" if requirement.url is not None else ""


def _of_host_and_tree(loaded: LoadedManifest) -> Iterator[_Installed]:
    """Yield the versions of the host's packages and of the components themselves."""
    manifest = loaded.manifest
    host = {name: getattr(manifest.host, name) for name in (*HOST_PACKAGES, PYTHON)}
    for name, version in host.items():
        specifier = python_range(version) if name == PYTHON else _version_or_range(version)
        if specifier:
            shown = f"{name.replace('_', '-')}{specifier}"
            yield _Installed(canonicalize_name(name), shown, specifier, None, loaded.where("host", name))
    for name, component in manifest.components.items():
        if component.dist is not None:
            specifier = SpecifierSet(f"=={component.dist.version}")
            place = loaded.where("components", name, "dist", "version")
            shown = f"{component.dist.name}=={component.dist.version}"
            yield _Installed(canonicalize_name(component.dist.name), shown, specifier, None, place)


def _version_or_range(text: str | None) -> SpecifierSet | None:
    """Return a host's version as a set of specifiers; None for a text that is neither a version nor a range."""
    try:
        return SpecifierSet(f"=={Version(text)}") if text is not None else None
    except InvalidVersion:
        pass
    try:
        return SpecifierSet(text or "")
    except InvalidSpecifier:
        return None


def _bounds(name: str, component: LockedComponent, packages: Container[str]) -> Iterator[_Bound]:
    """Yield the bounds that a component declares for these packages."""
    for file, texts in (component.declares or {}).items():
        for text in texts:
            package = _package(text)
            if package in packages:
                requirement = _parsed(text)
                yield _Bound(name, file, package, text, requirement.specifier, requirement.marker)


def _meet(bound: _Bound | _Installed, one: _Installed, stack_environments: Sequence[Environment]) -> bool:
    """Return whether both apply in some environment."""
    if bound.marker is None and one.marker is None:
        return True
    return any(applies(bound.marker, each) and applies(one.marker, each) for each in stack_environments)


def _conflict(one: _Installed, other: _Installed) -> str:
    return (
        f"{other.place}: {other.text} conflicts with {one.text} ({one.place}); fix: remove one of them, "
        "an inherited one by a plain list without it"
    )


def _key(override: Override) -> tuple[str, str, str, SpecifierSet]:
    package = canonicalize_name(override.package)
    return override.component, override.file, package, SpecifierSet(override.bound)


def _unnamed(bound: _Bound, one: _Installed) -> str:
    named = f"component: {bound.component}, package: {bound.package}, file: {bound.file}"
    return (
        f'{one.place}: {one.text} breaks "{bound.text}" of {bound.component} ({bound.file}); fix: change the version, '
        f'or name it under overrides: {{{named}, bound: "{bound.specifier}", why: ...}}'
    )


def _why_wrong(
    override: Override,
    component: LockedComponent,
    bounds: Sequence[_Bound],
    broken: Sequence[tuple[_Bound, _Installed]],
    installed: dict[str, list[_Installed]],
) -> str:
    """Return why an override does not name a broken bound; empty if it does."""
    key = name, file, package, specifier = _key(override)
    if any((one.component, one.file, one.package, one.specifier) == key for one, _ in broken):
        return ""
    files = component.declares or {}
    if file not in files:
        return f"no file {file} of {name} was read (read: {', '.join(files) or 'none'})"
    declared = [one for one in bounds if (one.component, one.file, one.package) == (name, file, package)]
    if not any(one.specifier == specifier for one in declared):
        has = ", ".join(f'"{one.text}"' for one in declared) or f"no bound of {package}"
        return f"{file} of {name} does not declare {package}{override.bound}; it has {has}"
    versions = ", ".join(one.text for one in installed.get(package, ()))
    if not versions:
        return f"nothing is broken: the manifest names no version of {package}; fix: remove the override"
    return f"{versions} is not shown to break {package}{override.bound}; fix: remove the override"
