"""Comparison of the components' declared bounds with a manifest's versions and `overrides`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
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

HOST_PACKAGES = ("torch", "torch_npu", "torchvision", "torchaudio", "triton_ascend")


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


class _Range(NamedTuple):
    """A range of versions of a package.

    Attributes:
        place: Where the manifest takes it; of a bound, the component's file.
        component: The component that declares it, if it is a bound.
    """

    package: str
    text: str
    specifier: SpecifierSet
    marker: Marker | None
    place: str
    component: str = ""

    def names(self, component: str, file: str, package: str) -> bool:
        return (self.component, self.place, self.package) == (component, file, package)


_Taken = dict[str, list[_Range]]


def compare_bounds(loaded: LoadedManifest, lock: Lock) -> Comparison:
    """Compare the components' bounds in a lock with its manifest. Nothing is fetched."""
    found = Comparison()
    if loaded.digest != lock.manifest_digest:
        found.notes.append(
            f"{loaded.path.name} has changed since its lock was made, whose bounds are compared"
        )
    components = dict(_comparable(loaded, lock, found))
    bounds = [one for name, each in components.items() for one in _bounds(name, each)]
    stack_environments = environments(loaded.manifest.host.python)
    overridden = {canonicalize_name(override.package) for override in loaded.manifest.overrides}
    taken: _Taken = {}
    bounded = {one.package for one in bounds} | overridden
    for one in (*_required(loaded, stack_environments, bounded, found), *_of_host_and_tree(loaded)):
        taken.setdefault(one.package, []).append(one)
    for each in taken.values():
        for one, other in combinations(each, 2):
            if _exclude(one, other, stack_environments):
                found.errors.append(
                    f"{other.place}: {other.text} conflicts with {one.text} ({one.place}); fix: remove one of them, "
                    "an inherited one by a plain list without it"
                )
    broken: list[_Range] = []
    named = {_key(override) for override in loaded.manifest.overrides}
    for bound in bounds:
        against = [one for one in taken.get(bound.package, ()) if _meet(bound, one, stack_environments)]
        found.compared += bool(against)
        for one in against:
            if exclude_each_other(one.specifier, bound.specifier):
                broken.append(bound)
                if (bound.component, bound.place, bound.package, bound.specifier) not in named:
                    found.errors.append(_unnamed(bound, one))
    for number, override in enumerate(loaded.manifest.overrides):
        reason = _why_wrong(loaded, override, components, bounds, broken, taken)
        place = loaded.where("overrides", number)
        if reason and loaded.is_inherited("overrides", number):  # of what this manifest has changed
            found.notes.append(f"{place}: no longer needed: {reason.partition('; fix: ')[0]}")
        elif reason:
            found.errors.append(f"{place}: overrides[{number}]: {reason}")
    return found


def _comparable(
    loaded: LoadedManifest, lock: Lock, found: Comparison
) -> Iterator[tuple[str, LockedComponent]]:
    """Yield the components whose bounds were locked at the manifest's pin; add a note for the others."""
    for name, spec in loaded.manifest.components.items():
        component = lock.components.get(name)
        if component is None or _other_pin(spec, component):
            found.notes.append(f"{name}: its requirements were not compared: its pin is not the lock's")
        else:
            found.notes += [f"{name}: not read, so not compared: {reason}" for reason in component.unread]
            yield name, component


def _other_pin(spec: Spec, component: LockedComponent) -> bool:
    wanted = {path: module.ref for path, module in spec.submodules.items()}
    locked = {module.path: module.pin for module in component.submodules}
    releases = [source.pypi for source in spec.sources] == [source.pypi for source in component.sources]
    return (spec.ref, wanted) != (component.ref, locked) or not releases


def _bounds(name: str, component: LockedComponent) -> Iterator[_Range]:
    """Yield the bounds that a component declares."""
    for file, texts in (component.declares or {}).items():
        for text in texts:
            one = Requirement(text)
            yield _Range(canonicalize_name(one.name), text, one.specifier, one.marker, file, name)


def _required(
    loaded: LoadedManifest, stack_environments: Sequence[Environment], bounded: set[str], found: Comparison
) -> list[_Range]:
    """Return the host's requirements with a version; add a note for bounded packages without one."""
    required: list[_Range] = []
    elsewhere: dict[str, str] = {}
    for number, text in enumerate(loaded.manifest.requirements):
        one, place = Requirement(text), loaded.where("requirements", number)
        package = canonicalize_name(one.name)
        note = f"{place}: {package}: not compared: "
        if one.marker is not None and not can_judge(one.marker):
            found.notes += [f"{note}its marker can't be judged"] if package in bounded else []
        elif not any(applies(one.marker, each) for each in stack_environments):
            why = "its marker is false on the manifest's host, so it is not required"
            elsewhere[package] = note + why
        elif one.url is not None:
            found.notes += [f"{note}it comes from a URL"] if package in bounded else []
        elif one.specifier:
            shown = text.partition(";")[0].strip()
            required.append(_Range(package, shown, one.specifier, one.marker, place))
    unknown = elsewhere.keys() & bounded - {one.package for one in required}
    found.notes += [elsewhere[package] for package in sorted(unknown)]
    return required


def _of_host_and_tree(loaded: LoadedManifest) -> Iterator[_Range]:
    """Yield the versions of the host's packages and of the components themselves."""
    manifest = loaded.manifest
    for name in (*HOST_PACKAGES, PYTHON):
        version = getattr(manifest.host, name)
        specifier = python_range(version) if name == PYTHON else _version_or_range(version)
        if specifier:
            shown = f"{name.replace('_', '-')}{specifier}"
            yield _Range(canonicalize_name(name), shown, specifier, None, loaded.where("host", name))
    for name, component in manifest.components.items():
        if component.dist is not None:
            shown = f"{component.dist.name}=={component.dist.version}"
            specifier = SpecifierSet(f"=={component.dist.version}")
            place = loaded.where("components", name, "dist", "version")
            yield _Range(canonicalize_name(component.dist.name), shown, specifier, None, place)


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


def _exclude(one: _Range, other: _Range, stack_environments: Sequence[Environment]) -> bool:
    return _meet(one, other, stack_environments) and exclude_each_other(one.specifier, other.specifier)


def _meet(one: _Range, other: _Range, stack_environments: Sequence[Environment]) -> bool:
    """Return whether both apply in some environment."""
    return any(applies(one.marker, each) and applies(other.marker, each) for each in stack_environments)


def _key(override: Override) -> tuple[str, str, str, SpecifierSet]:
    package = canonicalize_name(override.package)
    return override.component, override.file, package, SpecifierSet(override.bound)


def _unnamed(bound: _Range, one: _Range) -> str:
    named = f"component: {bound.component}, package: {bound.package}, file: {bound.place}"
    return (
        f'{one.place}: {one.text} breaks "{bound.text}" of {bound.component} ({bound.place}); fix: change the version, '
        f'or name it under overrides: {{{named}, bound: "{bound.specifier}", why: ...}}'
    )


def _why_wrong(
    loaded: LoadedManifest,
    override: Override,
    components: Mapping[str, LockedComponent],
    bounds: Sequence[_Range],
    broken: Sequence[_Range],
    taken: _Taken,
) -> str:
    """Return why an override does not name a broken bound; empty if it does, or nothing was compared."""
    name, file, package, specifier = _key(override)
    if name not in components:
        known = list(loaded.manifest.components)
        return "" if name in known else f"unknown component {name!r}{did_you_mean(name, known)}"
    if any(one.names(name, file, package) and one.specifier == specifier for one in broken):
        return ""
    files = components[name].declares or {}
    if file not in files:
        return f"no file {file} of {name} was read (read: {', '.join(files) or 'none'})"
    declared = [one for one in bounds if one.names(name, file, package)]
    if not any(one.specifier == specifier for one in declared):
        has = ", ".join(f'"{one.text}"' for one in declared) or f"no bound of {package}"
        return f"{file} of {name} does not declare {package}{override.bound}; it has {has}"
    versions = ", ".join(one.text for one in taken.get(package, ()))
    if not versions:
        return f"nothing is broken: the manifest names no version of {package}; fix: remove the override"
    return f"{versions} is not shown to break {package}{override.bound}; fix: remove the override"
