"""What an environment variable may be set to, as the code or the manual that reads it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

_WHOLE = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*")
_WITH_UNIT = re.compile(r"([0-9]+)\s*([A-Za-z]+)")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_BOTH = _YES | _NO


@dataclass(frozen=True)
class Wrong:
    """Why a value is not one that its reader takes.

    instead: a value that is, or in `wanted` what it looks like; both "" if it is best left out. certain: no version
    of the reader takes it.
    """

    why: str
    instead: str = ""
    wanted: str = ""
    certain: bool = False


Values = Callable[[str], "Wrong | None"]
"""What one reader takes: None for a value that is fine."""


def whole(low: int | None = None, high: int | None = None, unit: str = "") -> Values:
    """A whole number as int() takes it, in a range if there is one. unit: of the number, for people."""

    def test(value: str) -> Wrong | None:
        if _WHOLE.fullmatch(value):
            return _outside(int(value), low, high, unit)
        word = value.strip().lower()
        instead = "1" if word in _YES else "0" if word in _NO else _without_unit(value, unit)
        if instead and _outside(int(instead), low, high, unit):
            instead = ""
        return _no_number("a whole number", instead, unit)

    return test


def switch_number() -> Values:
    """A switch that is read with int(): any number but 0 is on."""

    def test(value: str) -> Wrong | None:
        wrong = whole()(value)
        return replace(wrong, wanted="1 or 0") if wrong else None

    return test


def number(low: float | None = None, high: float | None = None, unit: str = "") -> Values:
    """A number as float() takes it, in a range if there is one."""

    def test(value: str) -> Wrong | None:
        try:
            given = float(value)
        except ValueError:
            return _no_number("a number", _without_unit(value, unit), unit)
        return _outside(given, low, high, unit)

    return test


def _no_number(wanted: str, instead: str, unit: str) -> Wrong:
    wanted += f" of {unit}" if unit else ""
    return Wrong(f"is not {wanted}", instead, wanted, certain=True)


def _without_unit(value: str, unit: str) -> str:
    """300 of 300MB, where MB is what the number means anyway."""
    found = _WITH_UNIT.fullmatch(value.strip())
    written = (
        {unit.lower(), unit.lower()[:1], unit.lower()[:3]} if unit != "seconds" else {"s", "sec", "seconds"}
    )
    return found[1] if found and found[2].lower() in written else ""


def one_of(*names: str, fold: bool = False, certain: bool = False) -> Values:
    """One of some words. fold: whatever their case. certain: the reader refuses any other."""

    def test(value: str) -> Wrong | None:
        if value in names or (fold and value.lower() in {name.lower() for name in names}):
            return None
        from npu_rl.config.suggest import nearest

        return Wrong(
            f"is none of {', '.join(names)}",
            nearest(value, names) or "",
            f"one of {', '.join(names)}",
            certain,
        )

    return test


def compared(on: frozenset[str], off: frozenset[str], change: Callable[[str], str] = str) -> Values | None:
    """A switch that a reader compares with text. None if the text is no yes or no, so that any value may be meant.

    on, off: what counts as on and as off; with one of them empty, every other value counts as that one. change: what
    the reader does with the value first, such as `str.lower`.
    """
    if not (on | off) or any(text.lower() not in _BOTH for text in on | off):
        return None

    def test(value: str) -> Wrong | None:
        given = change(value)
        if given in on | off or not value.strip():
            return None
        word = value.strip().lower()
        if word in _YES:
            return None if not on else _misread(on, "off", "1")
        if word in _NO:
            return None if not off else _misread(off, "on", "0")
        return Wrong(
            "is neither 1 nor 0", "", f"{sorted(on)[0] if on else 1} or {sorted(off)[0] if off else 0}"
        )

    def _misread(taken: frozenset[str], read_as: str, wanted: str) -> Wrong:
        instead = wanted if wanted in taken else sorted(taken)[0]
        return Wrong(
            f"is read as {read_as}: only {' and '.join(sorted(taken))} is {'on' if read_as == 'off' else 'off'}",
            instead,
        )

    return test


def any_text() -> Values:
    """A switch that any text turns on, 0 too."""

    def test(value: str) -> Wrong | None:
        if value.strip().lower() in _NO:
            return Wrong("is read as on: any text is, and to leave it out is off")
        return None

    return test


def switch() -> Values:
    """1 or 0, read as a number."""

    def test(value: str) -> Wrong | None:
        if value.strip() in ("0", "1"):
            return None
        word = value.strip().lower()
        return Wrong("is neither 1 nor 0", "1" if word in _YES else "0" if word in _NO else "", "1 or 0")

    return test


def pairs(keys: dict[str, Callable[[str], bool]], together: Callable[[dict[str, str]], str]) -> Values:
    """KEY:VALUE,KEY:VALUE. keys: the known keys, and whether each takes a value. together: what is wrong with all
    of them, "" if nothing is."""

    def test(value: str) -> Wrong | None:
        given: dict[str, str] = {}
        for item in _items(value):
            key, colon, text = (part.strip() for part in item.partition(":"))
            if not colon or not text:
                return Wrong(f"has {item!r} where KEY:VALUE is read", "", "KEY:VALUE,KEY:VALUE")
            if key not in keys:
                from npu_rl.config.suggest import nearest

                near = nearest(key, keys)
                if near is None:
                    continue  # of another version, it may be
                return Wrong(f"has the unknown key {key!r}", value.replace(f"{key}:", f"{near}:"))
            if not keys[key](text):
                right = text.capitalize()
                return Wrong(
                    f"has {text!r} for {key}",
                    value.replace(f"{key}:{text}", f"{key}:{right}") if keys[key](right) else "",
                )
            given[key] = text
        wrong = together(given)
        return Wrong(wrong) if wrong else None

    return test


def _items(value: str) -> list[str]:
    """What stands between commas, those in brackets left out."""
    return [item for item in re.split(r",(?![^\[]*\])", value) if item.strip()]


def _outside(given: float, low: float | None, high: float | None, unit: str) -> Wrong | None:
    of = f" {unit}" if unit else ""
    if low is not None and given < low:
        return Wrong(f"is below {low:g}{of}" if high is None else _range(low, high, of), f"{low:.0f}")
    if high is not None and given > high:
        return Wrong(f"is above {high:.0f}{of}" if low is None else _range(low, high, of), f"{high:.0f}")
    return None


def _range(low: float, high: float, of: str) -> str:
    return f"is not within {low:.0f} to {high:.0f}{of}"
