r"""Answers that are plain numbers, in exact arithmetic: integers, decimals, fractions, percents, mixed numbers.

Most answers of a data set of competition problems are of this kind, and need neither algebra nor another process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

DIGITS = 300  # longer numbers are left to comparison by spelling
PLACES = 6  # decimals that an answer needs to stand for a fraction that never ends

_PLAIN = r"(?:\d{1,3}(?:(?:,|\{,\}|\s)\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"([-+]?)\s*({_PLAIN})", re.ASCII)
_FRACTION = re.compile(
    rf"([-+]?)\s*(?:(\d+)\s*)?\\frac\s*(?:\{{\s*([-+]?)({_PLAIN})\s*\}}|(\d))\s*(?:\{{\s*({_PLAIN})\s*\}}|(\d))",
    re.ASCII,
)
_SLASH = re.compile(rf"([-+]?)\s*(?:(\d+)\s+)?({_PLAIN})\s*/\s*({_PLAIN})", re.ASCII)
_POWER = re.compile(
    rf"([-+]?)\s*({_PLAIN})\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{\s*(-?\d{{1,2}})\s*\}}|(\d))", re.ASCII
)
_UNIT = re.compile(r"\s*(?:\\text\s*\{([^{}\\]*)\}|([A-Za-z]{2,12}))\s*(?:\^\s*\{?\s*[23]\s*\}?)?\s*\Z")
_WORDS = re.compile(r"[A-Za-z]+")
_SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_NO_UNIT = frozenset(
    {"or", "and", "not", "to", "plus", "minus", "pi", "if", "mod", "base", "sqrt", "sin", "cos", "tan"}
)


@dataclass(frozen=True)
class Number:
    """Number that an answer consists of.

    value: as written, without the percent sign. places: digits after the point; None for a fraction.
    """

    value: Fraction
    percent: bool = False
    places: int | None = None


def read_number(text: str) -> Number | None:
    """Return the number that the whole text is, without its unit; None for any other text. text: in one spelling."""
    if len(text) > DIGITS:
        return None
    percent = text.endswith(r"\%")
    text = text[:-2].rstrip() if percent else text
    number = _read(text)
    if number is None and not percent and (unit := _UNIT.search(text)):
        words = [w.casefold() for w in _WORDS.findall(unit[1] or unit[2] or "")]
        bare = _read(text[: unit.start()].rstrip())
        if bare is None or not words or any(c.isdigit() for c in unit[1] or "") or _NO_UNIT & set(words):
            return None
        if set(words) & {"percent", "percents"}:
            return Number(bare.value, True, bare.places)
        scale = 1
        for word in words:
            scale *= _SCALES.get(word.removesuffix("s"), 1)
        return Number(bare.value * scale, False, bare.places if scale == 1 else 0)
    return Number(number.value, percent, number.places) if number else None


def _read(text: str) -> Number | None:
    if found := _NUMBER.fullmatch(text):
        return Number(_signed(found[1], _plain(found[2])), places=len(found[2].partition(".")[2]))
    if found := _FRACTION.fullmatch(text):
        inner = _signed(found[3] or "", _plain(found[4] or found[5]))
        return _divided(found[1], found[2], inner, _plain(found[6] or found[7]))
    if found := _SLASH.fullmatch(text):
        return _divided(found[1], found[2], _plain(found[3]), _plain(found[4]))
    if found := _POWER.fullmatch(text):
        return Number(
            _signed(found[1], _plain(found[2])) * Fraction(10) ** int(found[3] or found[4]), places=0
        )
    return None


def _plain(text: str) -> Fraction:
    return Fraction("0" + re.sub(r"[{},\s]", "", text).rstrip("."))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _divided(sign: str, whole: str | None, above: Fraction, below: Fraction) -> Number | None:
    if not below:
        return None
    return Number(_signed(sign, Fraction(whole or 0) + above / below))


def same_number(right: Number, given: Number) -> bool:
    """Return whether `given` equals the number `right`.

    A right answer in percent may be given without the sign, or as a share; a right answer without it may be given in
    percent either way. Otherwise values must be equal, or one is a fraction and the other its correct rounding to six
    or more places.
    """
    hundredth = Fraction(1, 100)
    if right.percent == given.percent:
        return _close(right, given)
    bare = _close(Number(right.value, places=right.places), Number(given.value, places=given.places))
    return bare or (
        right.value * hundredth == given.value if right.percent else given.value * hundredth == right.value
    )


def _close(a: Number, b: Number) -> bool:
    if a.value == b.value:
        return True
    if (a.places is None) == (b.places is None):
        return False
    exact, rounded = (a, b) if a.places is None else (b, a)
    places = rounded.places or 0
    # A correctly rounded value differs by half a unit of its last place at most, and still shows some digits.
    return places >= PLACES and rounded.value != 0 and abs(exact.value - rounded.value) * 2 * 10**places <= 1
