"""Differences between two sets of values, such as those of two recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class DifferingValue(NamedTuple):
    """A value that differs between two sides, a and b; None for a side without it."""

    name: str
    a: str | None
    b: str | None

    def __str__(self) -> str:
        """Return the change from a to b in words."""
        return f"{self.name} {self.a or '(not set)'} -> {self.b or '(not set)'}"


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[DifferingValue]:
    """Yield the values that differ, sorted by name."""
    for name in sorted(first.keys() | second.keys()):
        if not equal(first.get(name), second.get(name)):
            yield DifferingValue(name, first.get(name), second.get(name))


def equal(first: str | None, second: str | None) -> bool:
    """Return whether two values are equal as text or as numbers. YAML reads 3e-3 as text."""
    if first == second or first is None or second is None:
        return first == second
    try:
        return float(first) == float(second)
    except ValueError:
        return False


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested keys as KEY.KEY, with their values as text."""
    found: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):  # an empty one sets nothing
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _plain(value)
    return found


def _plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
