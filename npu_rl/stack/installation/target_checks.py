"""Checks of an interpreter before anything is downloaded for it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from importlib.metadata import Distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from npu_rl.common.errors import HostError
from npu_rl.common.printable import counted
from npu_rl.stack.installation.target_python import InstalledPackage, TargetPython
from npu_rl.stack.pylocks.pylock_file import Pylock

_OWN_ENVIRONMENT = "Install into an environment of its own: --venv DIR"
_SHOWN = 8


def check_target(target: TargetPython, pylock: Pylock) -> None:
    """Raise HostError if the packages of a lock can't be installed into an interpreter."""
    wanted = pylock.target
    if (target.short, target.machine) != (
        wanted.python,
        wanted.machine,
    ) or target.implementation != "cpython":
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
    if target.managed and not target.venv:
        raise HostError(
            "This Python belongs to the operating system, which installs its packages",
            where=target.shown,
            why="It has the mark EXTERNALLY-MANAGED (PEP 668).",
            hint=_OWN_ENVIRONMENT,
        )
    if not target.absent:
        _check_folders(target)


def _check_folders(target: TargetPython) -> None:
    folders = [target.root, target.site, target.scripts]
    for folder in folders:
        if not folder.is_dir():
            raise HostError(
                "A folder of this Python is missing",
                where=str(folder),
                why=target.shown,
                hint=_OWN_ENVIRONMENT,
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise HostError(
                "You may not write into the folders of this Python",
                where=str(folder),
                why=f"It is that of {target.shown}.",
                hint=f"Ask its owner, or: {_OWN_ENVIRONMENT}",
            )
    if len({folder.stat().st_dev for folder in folders}) > 1:
        raise HostError(
            "The folders of this Python are on several file systems",
            where=", ".join(map(str, folders)),
            why="An installation is moved into them as a whole, which only works on one.",
            hint=_OWN_ENVIRONMENT,
        )


def check_room(target: TargetPython, needed: int) -> None:
    """Raise HostError if the disk has less than `needed` bytes free."""
    folder = next(path for path in (target.root, *target.root.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HostError(
            "Not enough free disk space for the packages",
            where=str(folder),
            why=f"Some {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free.",
            hint="Free some space, or choose another disk: --venv DIR",
        )


def check_replaced(target: TargetPython, replaced: list[tuple[InstalledPackage, str]]) -> None:
    """Raise HostError for packages of another version that can't be replaced."""
    ahead = [one for one, _ in replaced if target.search.index(one.site) < target.search.index(target.site)]
    if ahead:
        raise HostError(
            "Python would still import packages of another version",
            where=_names(ahead),
            why=f"They are in {', '.join(sorted({str(one.site) for one in ahead}))}, which comes before {target.site}.",
            hint=f"Remove them: {shlex.quote(target.path)} -m pip uninstall {' '.join(one.name for one in ahead)}\n"
            f"or: {_OWN_ENVIRONMENT}",
        )
    here = [one for one, _ in replaced if one.site == target.site]
    without = [one for one in here if not one.recorded]
    if without:
        raise HostError(
            "Packages of another version can't be replaced: their lists of files are missing",
            where=_names(without),
            why="They have no RECORD, so neither pip nor uv installed them.",
            hint=f"Remove them by hand from {target.site}, or: {_OWN_ENVIRONMENT}",
        )


def check_own_needs(target: TargetPython, coming: dict[str, str]) -> None:
    """Raise HostError if npu-rl itself is installed in this interpreter and would not work with the new packages."""
    own = target.packages.get("npu-rl")
    if own is None:
        return
    broken = [
        f"{requirement} ({coming[name]} would come)"
        for requirement in _requirements(own.distribution)
        if (name := str(canonicalize_name(requirement.name))) in coming
        and not requirement.specifier.contains(coming[name], prereleases=True)
    ]
    if broken:
        raise HostError(
            "npu-rl is installed in this Python, too, and would not work with these packages",
            where=target.shown,
            why="It needs " + "; ".join(broken),
            hint=_OWN_ENVIRONMENT,
        )


def broken_bounds(target: TargetPython, coming: dict[str, str]) -> Iterator[str]:
    """Yield a note for each remaining package whose version bounds a new package breaks."""
    found = []
    for one in target.packages.values():
        if one.name in coming or one.site != target.site:
            continue
        for requirement in _requirements(one.distribution):
            name = str(canonicalize_name(requirement.name))
            if name in coming and not requirement.specifier.contains(coming[name], prereleases=True):
                found.append(f"{one.name} {one.version} wants {requirement}")
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield f"{counted(len(found), 'bound')} of packages that stay will be broken: {'; '.join(found[:_SHOWN])}{more}"


def _requirements(distribution: Distribution) -> Iterator[Requirement]:
    """Yield the requirements that a package has without any extra."""
    for text in distribution.requires or ():
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one


def _names(packages: list[InstalledPackage]) -> str:
    more = f" and {len(packages) - _SHOWN} more" if len(packages) > _SHOWN else ""
    return ", ".join(f"{one.name} {one.version}" for one in packages[:_SHOWN]) + more
