"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar: another spelling, the same words, or a few letters off."""
    names = sorted(set(known))
    for same in (_plain, _words):
        for candidate in names:
            if same(candidate) == same(name):
                return candidate
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return near[0] if near else None


def alike(one: str, other: str) -> bool:
    """Return whether one name has all words of the other and exactly one more."""
    first, second = set(_words(one)), set(_words(other))
    small, large = sorted((first, second), key=len)
    return len(small) > 2 and small < large and len(large) - len(small) == 1


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _words(name: str) -> tuple[str, ...]:
    return tuple(sorted(word for word in re.split(r"[-_. ]+", name.lower()) if word))
