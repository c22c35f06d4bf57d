"""Checks and display of names, sizes and shapes from untrusted files. Doesn't need torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

_SHOWN = 100  # characters of a text of a file in a message
_LONGEST_NAME = 1000  # characters
_MOST_AXES = 64  # torch's own limit
_MOST_VALUES = 1 << 60  # torch counts values and bytes in 63 bits


def is_file_name(value: object) -> TypeGuard[str]:
    """Return whether a value is a plain file name, which can't lead to another folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & set(value)


def is_size(value: object) -> TypeGuard[int]:
    """Return whether a value is a valid number of values, or an offset."""
    return type(value) is int and 0 <= value < _MOST_VALUES


def is_shape(value: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """Return whether a value is a shape that torch supports, or an index into one.

    Sizes beside a 0 count, too: torch refuses [0, 2**62, 2**62].
    """
    if not isinstance(value, (tuple, list)) or len(value) > _MOST_AXES:
        return False
    product = 1
    for size in value:
        if type(size) is not int or not 0 <= size < _MOST_VALUES:
            return False
        product *= size or 1
    return product <= _MOST_VALUES


def odd_name(names: Iterable[object]) -> str | None:
    """Return the first invalid tensor name, for a message: not text, unprintable, or longer than a screen."""
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            return shown(name)
    return None


def shown(value: Any) -> str:
    """Return a value from a file for a message, shortened, since its `repr` may be huge."""
    if isinstance(value, str):
        return ascii(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
    if value is None or isinstance(value, (bool, float)) or (type(value) is int and abs(value) < 1 << 64):
        return repr(value)
    return f"a {type(value).__name__}"
