"""Requirements of one file of a project, in the form that a lock keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from npu_rl.stack.requirements.environments import can_judge

LONGEST = 500  # characters of a requirement; vLLM's longest, of protobuf, has 142
PYTHON = "python"  # the package of `requires-python` and `python_requires`


@dataclass(frozen=True)
class Reading:
    """The requirements that one file declares.

    Attributes:
        bounds: Requirements that bound a version, as they are written. Others can't be broken by any version.
        includes: Files that it includes, relative to its own folder.
        unread: Requirements that could not be read, with their place in the file.
    """

    bounds: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def bound_of(text: str) -> str | None:
    """Return a requirement on one line if it bounds a version, else None.

    Raises:
        ValueError: If its bound can't be compared, with the reason. A URL is not quoted: it may hold a password.
    """
    line = " ".join(text.split())
    try:
        if len(line) > LONGEST or not line.isprintable():  # a lock's texts are
            raise ValueError(f"longer than {LONGEST} characters, or not printable")
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):
        raise ValueError("not a requirement (PEP 508)") from None
    if requirement.url is not None:
        raise ValueError(f"{requirement.name} comes from a URL")
    if requirement.marker is not None and not can_judge(requirement.marker):
        raise ValueError(f"the marker of {requirement.name} can't be judged")
    return line if requirement.specifier else None


def bounds_of(texts: Iterable[str], place: str) -> Reading:
    """Return the reading of a list of requirements; `place` is the list's name in the file."""
    return numbered_bounds(((f"{place}, entry {number}", text) for number, text in enumerate(texts, 1)))


def numbered_bounds(texts: Iterable[tuple[str, str]]) -> Reading:
    """Return the reading of requirements, each with its place in the file."""
    bounds, unread = [], []
    for place, text in texts:
        try:
            bounds.append(bound_of(text))
        except ValueError as error:
            unread.append(f"{place}: {error}")
    return joined(Reading(tuple(filter(None, bounds)), (), tuple(unread)))


def python_bound(text: str, place: str) -> Reading:
    """Return the reading of a project's range of Python versions."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return Reading(unread=(f"{place} is not a range of versions",))
    return bounds_of([f"{PYTHON}{text}"] if text.strip() else [], place)


def joined(*readings: Reading) -> Reading:
    """Merge several readings of one file."""
    return Reading(
        tuple(dict.fromkeys(bound for one in readings for bound in one.bounds)),
        tuple(dict.fromkeys(path for one in readings for path in one.includes)),
        tuple(dict.fromkeys(reason for one in readings for reason in one.unread)),
    )
