"""Suggestions for an unknown name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the most likely known name: another spelling, the same words, or a few letters off.

    cutoff: how alike the letters must be, from 0 to 1, as difflib measures it.
    """
    return next(iter(nearest_names(name, known, 1, cutoff)), None)


def nearest_names(name: str, known: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """Return up to `count` names as `nearest` does, the likeliest first."""
    from difflib import get_close_matches  # nobody pays for it who made no mistake

    names = sorted(set(known))
    found = [other for same in (_plain, _words) for other in names if same(other) == same(name)]
    return list(dict.fromkeys(found + get_close_matches(name, names, count, cutoff)))[:count]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if a known name is near enough, else an empty string."""
    return question(nearest_names(name, known, 1))


def question(names: Sequence[str]) -> str:
    """Return `; did you mean 'x' or 'y'?`, or an empty string without names."""
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def alike(one: str, other: str) -> bool:
    """Return whether one name has all words of the other and exactly one more."""
    first, second = set(_words(one)), set(_words(other))
    small, large = sorted((first, second), key=len)
    return len(small) > 2 and small < large and len(large) - len(small) == 1


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _words(name: str) -> tuple[str, ...]:
    return tuple(sorted(word for word in re.split(r"[-_. ]+", name.lower()) if word))
