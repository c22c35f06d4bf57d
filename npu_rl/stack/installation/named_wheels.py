"""Wheels that the user names by `--wheels`: folders of them, or single files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from npu_rl.common.errors import UsageError
from npu_rl.stack.installation.target_python import TargetPython
from npu_rl.stack.pylocks.locked_versions import is_wanted_version


@dataclass(frozen=True)
class NamedWheel:
    """A wheel on this host.

    Attributes:
        rank: Its position among the tags that the interpreter accepts, best first; None if it accepts none of its tags.
        alone: Whether the user named the file itself, not only its folder.
    """

    path: Path
    name: str
    version: Version
    rank: int | None
    alone: bool


def named_wheels(places: Sequence[Path], target: TargetPython) -> tuple[NamedWheel, ...]:
    """Return the wheels in these folders and files. Raises UsageError for anything that is not a wheel."""
    order = {tag: number for number, tag in enumerate(_tags(target))}
    found = []
    for place in places:
        place = place.absolute()
        if place.is_dir():
            try:
                paths = sorted(path for path in place.iterdir() if path.name.endswith(".whl"))
            except OSError as error:
                raise _unreadable(place, error.strerror or str(error)) from error
            if not paths:
                raise _unreadable(place, "The folder has no file whose name ends in .whl.")
            found += [one for path in paths if (one := _parsed(path, order, alone=False)) is not None]
            continue
        one = _parsed(place, order, alone=True) if place.is_file() else None
        if one is None:
            raise _unreadable(
                place, "It is neither a folder nor a wheel, which is named NAME-VERSION-TAGS.whl."
            )
        found.append(one)
    return tuple(found)


def choose_wheel(wheels: Iterable[NamedWheel], name: str, version: str) -> NamedWheel | None:
    """Return the best wheel of a package that the interpreter accepts; an empty version accepts any."""
    fitting = [
        one
        for one in wheels
        if one.name == canonicalize_name(name)
        and one.rank is not None
        and (not version or is_wanted_version(str(one.version), version))
    ]
    return min(fitting, key=lambda one: (one.rank, str(one.version)), default=None)


def _parsed(path: Path, order: dict[Tag, int], *, alone: bool) -> NamedWheel | None:
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, ValueError):
        return None
    ranks = [order[tag] for tag in tags if tag in order]
    return NamedWheel(path, str(name), version, min(ranks, default=None), alone)


def _tags(target: TargetPython) -> Iterable[Tag]:
    """Yield the tags that the interpreter accepts, best first. It runs on this host, so its C library is npu-rl's."""
    version = tuple(map(int, target.short.split(".")))
    platforms = list(platform_tags())
    yield from cpython_tags(version, platforms=platforms)
    yield from compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms)


def _unreadable(place: Path, why: str) -> UsageError:
    return UsageError(
        "--wheels names no wheels", where=str(place), why=why, hint="Name a folder with wheels, or a wheel."
    )
