"""Checks of environment variables' values, based on the code that reads them or its manual."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

_WHOLE = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*")
_WITH_UNIT = re.compile(r"([0-9]+)\s*([A-Za-z]+)")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_YES_OR_NO = _YES | _NO


@dataclass(frozen=True)
class InvalidValue:
    """Why a value is invalid, and what to write instead.

    Attributes:
        why: Predicate for a message, such as "is not a whole number".
        instead: A valid value; "" if none can be suggested.
        wanted: Description of the valid values, used without `instead`. Both are "" if the variable is best removed.
        certain: Whether every version of the reader refuses the value.
    """

    why: str
    instead: str = ""
    wanted: str = ""
    certain: bool = False


ValueCheck = Callable[[str], "InvalidValue | None"]
"""Return None for a value that the reader accepts, else why it is invalid."""


def whole_number(low: int | None = None, high: int | None = None, unit: str = "") -> ValueCheck:
    """Return a check for a whole number as int() accepts it.

    Args:
        low: Least value, if there is one.
        high: Greatest value, if there is one.
        unit: Unit of the number, for messages.
    """

    def test(value: str) -> InvalidValue | None:
        if _WHOLE.fullmatch(value):
            return _outside(int(value), low, high, unit)
        instead = _as_digit(value) or _without_unit(value, unit)
        if instead and _outside(int(instead), low, high, unit):
            instead = ""
        return _not_a_number("a whole number", instead, unit)

    return test


def int_switch() -> ValueCheck:
    """Return a check for a switch that is read with int(): any number but 0 is on."""

    def test(value: str) -> InvalidValue | None:
        wrong = whole_number()(value)
        return replace(wrong, wanted="1 or 0") if wrong else None

    return test


def number(low: float | None = None, high: float | None = None, unit: str = "") -> ValueCheck:
    """Return a check for a number as float() accepts it, in a range if one is given."""

    def test(value: str) -> InvalidValue | None:
        try:
            given = float(value)
        except ValueError:
            return _not_a_number("a number", _without_unit(value, unit), unit)
        return _outside(given, low, high, unit)

    return test


def _not_a_number(wanted: str, instead: str, unit: str) -> InvalidValue:
    wanted += f" of {unit}" if unit else ""
    return InvalidValue(f"is not {wanted}", instead, wanted, certain=True)


def _without_unit(value: str, unit: str) -> str:
    """Return the digits of a value such as "300MB" if its unit is the one that the reader assumes; else ""."""
    found = _WITH_UNIT.fullmatch(value.strip())
    written = {unit.lower(), unit.lower()[:1], unit.lower()[:3]}
    return found[1] if found and found[2].lower() in written else ""


def one_of(*names: str, fold: bool = False, certain: bool = False) -> ValueCheck:
    """Return a check for one of several words.

    Args:
        fold: Whether case is ignored.
        certain: Whether the reader refuses any other word.
    """

    def test(value: str) -> InvalidValue | None:
        if value in names or (fold and value.lower() in {name.lower() for name in names}):
            return None
        from npu_rl.common.yaml_documents.suggest import nearest

        listed = ", ".join(names)
        return InvalidValue(
            f"is not one of {listed}", nearest(value, names) or "", f"one of {listed}", certain
        )

    return test


def compared_switch(
    on: frozenset[str], off: frozenset[str], change: Callable[[str], str] = str
) -> ValueCheck | None:
    """Return a check for a switch that is compared with text; None if that text is neither yes nor no.

    Args:
        on: Texts that turn it on; if empty, all but those in `off` do.
        off: Texts that turn it off; if empty, all but those in `on` do.
        change: What the reader does with the value first, such as `str.lower`.
    """
    if not (on | off) or any(text.lower() not in _YES_OR_NO for text in on | off):
        return None

    def test(value: str) -> InvalidValue | None:
        given = change(value)
        if given in on | off or not value.strip():
            return None
        wanted = _as_digit(value)
        if not wanted:
            valid = f"{min(on, default='1')} or {min(off, default='0')}"
            return InvalidValue("is neither 1 nor 0", "", valid)
        taken, meant, read_as = (on, "on", "off") if wanted == "1" else (off, "off", "on")
        if not taken:
            return None
        why = f"is read as {read_as}: only {' and '.join(sorted(taken))} is {meant}"
        return InvalidValue(why, wanted if wanted in taken else min(taken))

    return test


def on_if_set() -> ValueCheck:
    """Return a check for a switch that any text turns on, even 0."""

    def test(value: str) -> InvalidValue | None:
        if value.strip().lower() in _NO:
            return InvalidValue("is read as on: any text is, and to leave it out is off")
        return None

    return test


def switch() -> ValueCheck:
    """Return a check for 1 or 0, read as a number."""

    def test(value: str) -> InvalidValue | None:
        if value.strip() in ("0", "1"):
            return None
        return InvalidValue("is neither 1 nor 0", _as_digit(value), "1 or 0")

    return test


def _as_digit(value: str) -> str:
    """Return "1" for any word meaning yes, "0" for any word meaning no, else ""."""
    word = value.strip().lower()
    return "1" if word in _YES else "0" if word in _NO else ""


def key_value_pairs(
    keys: dict[str, Callable[[str], bool]], conflict: Callable[[dict[str, str]], str]
) -> ValueCheck:
    """Return a check for KEY:VALUE,KEY:VALUE.

    Args:
        keys: The known keys, each with a test of its value.
        conflict: Returns what is wrong with the pairs as a whole, "" if nothing is.
    """

    def test(value: str) -> InvalidValue | None:
        given: dict[str, str] = {}
        for item in _items(value):
            key, colon, text = (part.strip() for part in item.partition(":"))
            if not colon or not text:
                return InvalidValue(f"has {item!r} where KEY:VALUE is read", "", "KEY:VALUE,KEY:VALUE")
            if key not in keys:
                from npu_rl.common.yaml_documents.suggest import nearest

                near = nearest(key, keys)
                if near is None:
                    continue  # possibly a key of another version
                return InvalidValue(f"has the unknown key {key!r}", value.replace(f"{key}:", f"{near}:"))
            if not keys[key](text):
                right = text.capitalize()
                instead = value.replace(f"{key}:{text}", f"{key}:{right}") if keys[key](right) else ""
                return InvalidValue(f"has {text!r} for {key}", instead)
            given[key] = text
        wrong = conflict(given)
        return InvalidValue(wrong) if wrong else None

    return test


def _items(value: str) -> list[str]:
    """Return the items between commas; commas within brackets don't separate."""
    return [item for item in re.split(r",(?![^\[]*\])", value) if item.strip()]


def _outside(given: float, low: float | None, high: float | None, unit: str) -> InvalidValue | None:
    of = f" {unit}" if unit else ""
    if low is not None and given < low:
        return InvalidValue(f"is below {low:g}{of}" if high is None else _range(low, high, of), f"{low:.0f}")
    if high is not None and given > high:
        why = f"is above {high:.0f}{of}" if low is None else _range(low, high, of)
        return InvalidValue(why, f"{high:.0f}")
    return None


def _range(low: float, high: float, of: str) -> str:
    return f"is not within {low:.0f} to {high:.0f}{of}"
