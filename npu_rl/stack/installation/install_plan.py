"""The plan of an installation into an interpreter: kept, new and replaced packages, and what forbids it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from npu_rl.common.bounded import hash_file
from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter, read_interpreter
from npu_rl.common.printable import counted
from npu_rl.stack.installation.host_packages import HostPackage, host_packages
from npu_rl.stack.installation.named_wheels import NamedWheel, choose_wheel, named_wheels
from npu_rl.stack.installation.new_environment import environment_target, program_of
from npu_rl.stack.installation.unfinished import unfinished_packages
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.pylocks.committed_pylock import committed_pylock
from npu_rl.stack.pylocks.locked_versions import differing_packages
from npu_rl.stack.pylocks.pylock_file import LockedFile, LockedPackage, Pylock
from npu_rl.stack.pylocks.pylock_targets import choose_target, targets

_OWN_ENVIRONMENT = "Install into an environment of its own: --venv DIR"


@dataclass(frozen=True)
class PackageChanges:
    """The packages of an interpreter that an installation changes or keeps: versions by name.

    Attributes:
        replaced: The versions that are there before.
    """

    python: str
    python_version: str
    new_environment: bool
    installed: dict[str, str]
    replaced: dict[str, str]
    kept: dict[str, str]
    notes: list[str]


@dataclass(frozen=True)
class InstallPlan:
    """A planned installation.

    Attributes:
        coming: Packages of the lock that the interpreter lacks, has in another version, or has only in part.
        host: The host's packages.
        cuda: Whether they may be built for CUDA.
    """

    target: Interpreter
    pylock: Pylock
    coming: tuple[LockedPackage, ...]
    host: tuple[HostPackage, ...]
    cuda: bool

    @property
    def of_host(self) -> tuple[HostPackage, ...]:
        """The host's packages that are to be installed."""
        return tuple(one for one in self.host if one.version)

    @cached_property
    def changes(self) -> PackageChanges:
        """What the installation changes."""
        target, present = self.target, self.target.packages
        coming = {one.name: one.version for one in self.coming}
        kept = {one.name: present[one.name] for one in self.pylock.packages if one.name not in coming}
        return PackageChanges(
            target.path,
            target.version,
            target.absent,
            coming | {one.name: one.version for one in self.of_host},
            {name: present[name] for name in coming if name in present},
            kept | {one.name: one.present for one in self.host if one.present},
            [note for one in self.host if (note := one.note())],
        )


def plan_installation(
    named: str, python: str, venv: Path | None, wheels: tuple[Path, ...], root: Path = Path("/")
) -> InstallPlan:
    """Return what an installation of a manifest's locked packages would do. Nothing is changed or fetched.

    Args:
        named: The manifest's name or path.
        python: The interpreter, unless `venv` is given.
        venv: Folder of a virtual environment, which is made if it is missing.
        wheels: Folders and files that the user names.
        root: Folder below which CANN is looked for.

    Raises:
        UsageError: If the manifest is not for the interpreter's Python and machine, where it has several.
        LockError: If the packages are not locked.
        HostError: If it can't work.
    """
    loaded = load_manifest(named)
    manifest = loaded.manifest
    known = targets(manifest.device, manifest.host.python)
    program = program_of(venv) if venv is not None else Path(python)
    wanted = read_interpreter(str(program)).short if program is not None else None
    chosen = choose_target(known, wanted if wanted in {one.python for one in known} else None)
    pylock = committed_pylock(loaded, chosen, named)
    target = environment_target(venv, chosen.python) if venv is not None else read_interpreter(python)
    _check_target(target, pylock)
    again = unfinished_packages(Path(target.prefix))
    installed = {name: version for name, version in target.packages.items() if name not in again}
    found = named_wheels(wheels, chosen.python)
    coming = tuple(_with_named_wheel(one, found) for one, _ in differing_packages(pylock, installed))
    _check_own_needs(target, {one.name: one.version for one in coming})
    host = host_packages(loaded, installed, found, root)
    return InstallPlan(target, pylock, coming, host, manifest.device == "cuda")


def _check_target(target: Interpreter, pylock: Pylock) -> None:
    """Raise HostError if the packages of a lock can't be installed into an interpreter."""
    wanted = pylock.target
    found = (target.short, target.machine, target.implementation)
    if found != (wanted.python, wanted.machine, "cpython"):
        raise HostError(
            f"{pylock.manifest}'s packages are for CPython {wanted.python} on {wanted.machine}",
            where=target.shown,
            why=f"This is {target.implementation} {target.version} on {target.machine}.",
            hint=f"Name another interpreter: --python python{wanted.python}\n"
            "or let npu-rl make an environment with the right one: --venv DIR",
        )
    name, version = target.libc
    if name != "glibc" or Version(version) < Version(wanted.glibc):
        raise HostError(
            f"{pylock.manifest}'s packages are for Linux with glibc {wanted.glibc} or newer",
            where=target.shown,
            why=f"This host has {f'{name} {version}'.strip() or 'another C library'}.",
            hint="Use an image with a newer Linux, such as openEuler 22.03.",
        )
    if target.managed:
        raise HostError(
            "This Python belongs to the operating system, which installs its packages",
            where=target.shown,
            why="It has the mark EXTERNALLY-MANAGED (PEP 668).",
            hint=_OWN_ENVIRONMENT,
        )


def _check_own_needs(target: Interpreter, coming: dict[str, str]) -> None:
    """Raise HostError if npu-rl itself is installed in this interpreter and would not work with the new packages."""
    broken = [
        f"{one} ({version} would come)"
        for one in map(Requirement, target.own_needs)
        if (version := coming.get(str(canonicalize_name(one.name)))) is not None
        and (one.marker is None or one.marker.evaluate({"extra": ""}))
        and not one.specifier.contains(version, prereleases=True)
    ]
    if broken:
        raise HostError(
            "npu-rl is installed in this Python, too, and would not work with these packages",
            where=target.shown,
            why="It needs " + "; ".join(broken),
            hint=_OWN_ENVIRONMENT,
        )


def _with_named_wheel(package: LockedPackage, wheels: Sequence[NamedWheel]) -> LockedPackage:
    """Return a package with a wheel that the user names, such as a bundle's, in place of an sdist without wheels."""
    named = None if package.wheels else choose_wheel(wheels, package.name, package.version)
    if named is None:
        return package
    file = LockedFile(named.path.name, hash_file(named.path), named.path.stat().st_size)
    return LockedPackage(package.name, package.version, (file,))


def plan_lines(plan: InstallPlan) -> Iterator[str]:
    """Yield a plan as lines for people."""
    target, changes = plan.target, plan.changes
    if target.absent:
        yield f"make    {target.prefix}, a virtual environment with Python {target.version}"
    for one in plan.of_host:
        source = str(one.wheel.path) if one.wheel else "an index of pip's configuration"
        yield f"install {one.name} {one.version} from {source}"
    for package in plan.coming:
        built = "" if package.wheels else ", which is built, since no wheel fits"
        old = changes.replaced.get(package.name)
        instead = "" if old is None else f" in place of {old}"
        yield f"install {package.name} {package.version} by its hash{instead}{built}"
    if changes.kept:
        yield f"keep    {counted(len(changes.kept), 'package')}"
    yield from (f"note: {note}" for note in changes.notes)
    yield f"{counted(len(changes.installed), 'package')} to install into {target.shown}"


def done_lines(changes: PackageChanges) -> Iterator[str]:
    """Yield lines about the installed packages."""
    replaced = f", {len(changes.replaced)} of them in place of another version" if changes.replaced else ""
    if changes.installed:
        yield f"{counted(len(changes.installed), 'package')} installed into {changes.python}{replaced}."
    else:
        yield f"{changes.python} has every package; nothing to install."
    yield from (f"note: {note}" for note in changes.notes)
