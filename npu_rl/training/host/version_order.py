"""Ordering of Huawei's and NVIDIA's version numbers: 25.0.RC1 comes before 25.0.0."""

from __future__ import annotations

import re


def same_version(found: str, wanted: str) -> bool:
    """Return whether two versions are equal, ignoring case."""
    return found.lower() == wanted.lower()


def is_older(found: str, wanted: str) -> bool | None:
    """Return whether a version comes before another; None if one of them can't be ordered."""
    ours, theirs = _key(found), _key(wanted)
    return None if ours is None or theirs is None else ours < theirs


def _key(version: str) -> tuple[tuple[int, int], ...] | None:
    """Return a sort key. Release candidates come before numbers in the same position."""
    parts = []
    for word in re.split(r"[.-]", version.lower()):
        found = re.fullmatch(r"(rc|alpha|beta|t)?(\d{1,9})", word)
        if found is None:
            return None
        rank = {"t": 0, "alpha": 0, "beta": 1, "rc": 2, None: 3}[found[1]]
        parts.append((rank, int(found[2])))
    return tuple(parts)
