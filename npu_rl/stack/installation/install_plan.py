"""The plan of an installation into an interpreter: kept, new and replaced packages, and their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import hash_file
from npu_rl.common.printable import counted
from npu_rl.stack.installation.host_packages import HostPackage, host_notes, host_packages
from npu_rl.stack.installation.index_packages import PackageIndexes
from npu_rl.stack.installation.named_wheels import NamedWheel, choose_wheel
from npu_rl.stack.installation.target_checks import (
    broken_bounds,
    check_own_needs,
    check_replaced,
    check_room,
    check_target,
)
from npu_rl.stack.installation.target_python import InstalledPackage, TargetPython
from npu_rl.stack.pylocks.locked_versions import differing_packages
from npu_rl.stack.pylocks.pylock_file import LockedFile, LockedPackage, Pylock
from npu_rl.stack.pylocks.requirement_lines import package_lines

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

# What a wheel has, and what it is unpacked to: 462 MB of wheels became 1,669 MB (deepseek-r1-zero on x86-64, without
# torch), 238 MB became 764 (quickstart).
_UNPACKED = 4.7


@dataclass(frozen=True)
class InstallPlan:
    """A planned installation.

    Attributes:
        kept: Packages of the lock that the interpreter has.
        coming: Packages of the lock that it lacks, or has in another version.
        replaced: Those of another version, with the version that comes.
        host: The host's packages.
        notes: Further notes for the user.
    """

    target: TargetPython
    kept: tuple[InstalledPackage, ...]
    coming: tuple[LockedPackage, ...]
    replaced: tuple[tuple[InstalledPackage, str], ...]
    host: tuple[HostPackage, ...]
    notes: tuple[str, ...]

    @property
    def versions(self) -> dict[str, str]:
        """Versions of all packages to install."""
        found = {one.name: one.version for one in self.coming}
        return found | {one.name: one.version for one in self.host if one.comes}

    @property
    def nothing_to_do(self) -> bool:
        """Return whether the interpreter has everything."""
        return not self.versions and not self.target.absent

    def size(self) -> int:
        """Return the maximum number of bytes to download, as far as the sizes are known."""
        found = [*self.coming, *(one.found for one in self.host if one.found is not None)]
        return sum(max((file.size or 0 for file in one.wheels or one.files), default=0) for one in found)

    def requirement_lines(self) -> Iterator[str]:
        """Yield the lines of a requirements file with hashes. Raises OSError for a wheel that can't be read."""
        for package in self.coming:
            yield from package_lines(package)
        yield from (one.requirement() for one in self.host if one.comes)


def plan_installation(
    loaded: LoadedManifest,
    pylock: Pylock,
    target: TargetPython,
    wheels: Sequence[NamedWheel],
    indexes: PackageIndexes,
    root: Path = Path("/"),
) -> InstallPlan:
    """Return what an installation would do. Only the index is queried, for packages such as torch.

    Args:
        root: Folder below which CANN is looked for.

    Raises:
        HostError: If it can't work: another Python, no permission, no room, a package of the host that comes from
            nowhere, one that can't be replaced.
        SourceError: If an index can't be queried.
    """
    check_target(target, pylock)
    differing = (package for package, _ in differing_packages(pylock, target.versions))
    coming = [_with_named_wheel(package, wheels) for package in differing]
    versions = {one.name: one.version for one in coming}
    locked = [target.packages[one.name] for one in pylock.packages if one.name in target.packages]
    kept = [one for one in locked if one.name not in versions]
    replaced = [(one, versions[one.name]) for one in locked if one.name in versions]
    check_replaced(target, replaced)
    check_own_needs(target, versions)
    host = host_packages(loaded, target, wheels, indexes, root)
    notes = (*host_notes(host), *broken_bounds(target, versions))
    plan = InstallPlan(target, tuple(kept), tuple(coming), tuple(replaced), host, notes)
    check_room(target, round(plan.size() * _UNPACKED))
    return plan


def _with_named_wheel(package: LockedPackage, wheels: Sequence[NamedWheel]) -> LockedPackage:
    """Return a package with a wheel that the user names, such as a bundle's, in place of an sdist without wheels."""
    named = None if package.wheels else choose_wheel(wheels, package.name, package.version)
    if named is None:
        return package
    file = LockedFile(named.path.name, hash_file(named.path), named.path.stat().st_size)
    return LockedPackage(package.name, package.version, (file,))


def plan_lines(plan: InstallPlan) -> Iterator[str]:
    """Yield a plan as lines for people."""
    if plan.target.absent:
        yield f"make    {plan.target.root}, a virtual environment with Python {plan.target.version}"
    for one in plan.host:
        if one.present:
            yield f"keep    {one.name} {one.present}, the host's"
        elif one.comes:
            source = str(one.wheel) if one.wheel else "an index of pip's configuration"
            yield f"install {one.name} {one.version} from {source}"
    for present, version in plan.replaced:
        yield f"replace {present.name} {present.version} by {version}"
    replaced = {present.name for present, _ in plan.replaced}
    new = [f"{one.name} {one.version}" for one in plan.coming if one.name not in replaced]
    if new:
        yield f"install {counted(len(new), 'package')} with their hashes: {', '.join(new)}"
    built = [f"{one.name} {one.version}" for one in plan.coming if not one.wheels]
    if built:
        yield f"build   {', '.join(built)}: no wheel fits"
    if plan.kept:
        yield f"keep    {counted(len(plan.kept), 'package')} that {'is' if len(plan.kept) == 1 else 'are'} as locked"
    yield from (f"note: {note}" for note in plan.notes)
    if plan.nothing_to_do:
        yield f"{plan.target.shown} has every package; nothing to do."
    else:
        size = f", {plan.size() / 1e6:.0f} MB to download at most" if plan.size() else ""
        yield f"{counted(len(plan.versions), 'package')} into {plan.target.shown}{size}"


def done_lines(plan: InstallPlan) -> Iterator[str]:
    """Yield lines about the installed packages."""
    replaced = f", {len(plan.replaced)} of them in place of another version" if plan.replaced else ""
    if plan.versions:
        yield f"{counted(len(plan.versions), 'package')} installed into {plan.target.path}{replaced}."
    else:
        yield f"{plan.target.path} has every package; nothing to install."
    yield from (f"note: {note}" for note in plan.notes)


def plan_json(plan: InstallPlan) -> dict[str, Any]:
    """Return a plan as a document for programs."""
    return {
        "python": plan.target.path,
        "python_version": plan.target.version,
        "new_environment": plan.target.absent,
        "installed": plan.versions,
        "replaced": {present.name: present.version for present, _ in plan.replaced},
        "kept": {one.name: one.version for one in plan.kept}
        | {o.name: o.present for o in plan.host if o.present},
        "notes": list(plan.notes),
    }
