"""The names that a bundle's members may have: no other is accepted, and none leads out of a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable

LIST = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
FACTS = "bundle.json"

MANIFESTS, PROGRAM, PATCHES, SDISTS, UNITS, WHEELS = (
    "manifests", "npu-rl", "patches", "sdists", "units", "wheels",
)  # fmt: skip
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*"
_FORMS = (
    rf"{MANIFESTS}/{_PART}(?:/{_PART}){{1,12}}",
    rf"{PROGRAM}/{_PART}\.whl",
    rf"{PATCHES}/[0-9a-f]{{64}}",
    rf"{SDISTS}/{_PART}",
    rf"{UNITS}/[0-9a-f]{{40}}/[0-9]{{2}}\.pack",
    rf"{WHEELS}/{_PART}\.(?:whl|tar\.gz|zip)",
)
_OWN = (LIST, SIGNATURE, FACTS)
_FORM = re.compile("|".join(_FORMS))


def is_member_name(name: str) -> bool:
    """Return whether a bundle may have a member of this name."""
    return name in _OWN or _FORM.fullmatch(name) is not None


def kind_of(name: str) -> str:
    """Return the kind of a member: the first part of its name."""
    return name.partition("/")[0]


def unit_key_of(name: str) -> str:
    """Return the store key of the unit whose pack a member is."""
    return name.split("/")[1]


def of_kind(names: Iterable[str], kind: str) -> list[str]:
    """Return the names of the members of a kind, in order."""
    return sorted(name for name in names if name.startswith(f"{kind}/"))
