"""Wheels that the user names by `--wheels`: folders of them, or single files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.tags import compatible_tags, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from npu_rl.common.errors import UsageError
from npu_rl.common.package_versions import fits


class NamedWheel(NamedTuple):
    """A wheel that the interpreter accepts; `alone` if the user named the file itself, not only its folder."""

    path: Path
    name: str
    version: str
    alone: bool


def named_wheels(places: Sequence[Path], python: str) -> tuple[NamedWheel, ...]:
    """Return the wheels in these folders and files that an interpreter of this host accepts, the best first.

    Args:
        python: Its version, such as 3.11.

    Raises:
        UsageError: For a place without any wheel.
    """
    version, platforms = tuple(map(int, python.split("."))), list(platform_tags())
    tags = [*cpython_tags(version, platforms=platforms)]
    tags += compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms)
    ranks = {tag: number for number, tag in enumerate(tags)}
    found: list[tuple[int, NamedWheel]] = []
    for place in places:
        paths = [place] if place.is_file() else sorted(place.glob("*.whl"))
        for path in paths:
            try:
                name, its_version, _, its_tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                paths = []  # at least one is not what it seems
                break
            wheel = NamedWheel(path, str(name), str(its_version), path == place)
            found += [(min(its), wheel)] if (its := [ranks[tag] for tag in its_tags & ranks.keys()]) else []
        if not paths:
            raise UsageError(
                "--wheels names no wheels",
                where=str(place),
                hint="Name a folder with wheels, or a wheel, whose name is NAME-VERSION-TAGS.whl.",
            )
    return tuple(wheel for _, wheel in sorted(found))


def choose_wheel(wheels: Iterable[NamedWheel], name: str, version: str) -> NamedWheel | None:
    """Return the best wheel of a package; an empty version accepts any."""
    fitting = (one for one in wheels if one.name == name and fits(one.version, version))
    return next(fitting, None)
