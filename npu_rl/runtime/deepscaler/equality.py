r"""Comparison of an answer with the ground truth, as far as it can be decided without algebra.

| equal | not equal |
|---|---|
| `\frac12`, `\dfrac{1}{2}`, `1/2`, `0.5`, `½`, `50\%` | `0.333` and 1/3 (six places are needed) |
| `1,234`, `1{,}234`, `1234`, `1234.0`, `\$1234` | `1,23` and 123 |
| `5`, `5\text{ cm}`, `5 cm` (units count for nothing) | `5` and `5\text{ million}`; `5` and `5 \text{ or } 6` |
| `90^\circ`, `90`; `\text{Yes}`, `yes`; `(C)`, `C` | words with other letters, or the same in another order |
| `1,2`, `2,1`, `\{2,1\}`, `1 \text{ and } 2`; `\pm2` and `2,-2` | a part of a list or set; `\pm2` and 2 |
| `(1,2)` and `(1,2)`, `(1,2)` and `1,2`; `x<3` and `(-\infty,3)` | `(1,2)` and `(2,1)`; `(1,2)` and `[1,2]` |
| `\sqrt8`, `2\sqrt2`; `x^2+2x+1`, `(x+1)^2`; `2^{10}`, 1024 | `i`, `-i`; `\pi`, 3.14; `101_2`, `101_3` |

`12,345` is a number, `12, 345` are two. `x=5` is 5, and the last member of a chain such as `2+3=5` counts. These
cases and the table's last four lines are decided by the library (`symbolic`), in a process that can be killed.
"""

from __future__ import annotations

import re

from .exact import read_number, same_number
from .spelling import one_spelling

LONGEST = 1000  # characters of an answer that algebra is tried on; beyond, only the same spelling is equal
DEEPEST = 24  # nested braces and brackets, likewise
MOST_DIGITS = 400
LETTERS = 3  # a right answer of up to three letters may be a product of variables

_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|[ '.-])*")
_BASE = re.compile(r"([0-9A-Za-z]+)\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d))")
_MANY_DIGITS = re.compile(rf"\d{{{MOST_DIGITS}}}")
_CHOICE = re.compile(r"\(\s*([A-Za-z])\s*\)")
_SPACE = re.compile(r"\s+")
_IDLE_SPACE = re.compile(r"(?<!\w)\s+|\s+(?!\w)")

# Powers of powers of powers, and powers and factorials of numbers with many digits, which nobody can write out.
_HOPELESS = re.compile(
    r"(?:\^\s*\{?[^{}^]{0,40}){3}|\^\s*\{?\s*-?\d{7}|\d{6}\s*!|!\s*\)?\s*!\s*\)?\s*!|(?:\)!){2}"
)


def same_without_algebra(right: str, given: str) -> bool | None:
    """Return whether two `spelled` answers are equal by spelling or arithmetic; None if only algebra can decide."""
    if not right or not given:
        return False
    if _IDLE_SPACE.sub("", right) == _IDLE_SPACE.sub("", given):
        return True
    if (a := read_number(right)) is not None and (b := read_number(given)) is not None:
        return same_number(a, b)
    if (word := _word(right)) is not None:
        other = _word(given)
        if other is not None or len(word) > LETTERS:
            return word == other
    if (with_base := _BASE.fullmatch(right)) or _BASE.fullmatch(given):
        return _same_in_base(right, given) if with_base else False
    if not (_worth_algebra(right) and _worth_algebra(given)):
        return False
    return None


def spelled(text: object) -> str:
    """Return an answer in its one spelling. A text that is far too long is cut: it can only be equal to itself."""
    return one_spelling(str(text)[: 20 * LONGEST])


def _word(text: str) -> str | None:
    """Return a name, a choice, yes or no in one case; single letters and `(C)` are choices."""
    text = text.replace(r"\text", "").replace("{", "").replace("}", "").strip()
    if choice := _CHOICE.fullmatch(text):
        return choice[1].casefold()
    return _SPACE.sub(" ", text.casefold()).strip(" .") if _WORD.fullmatch(text) else None


def _same_in_base(right: str, given: str) -> bool:
    """Return whether the numbers are equal in the same base: `101_2` equals `101_{2}`, and 101 without a base."""
    a, b = _BASE.fullmatch(right), _BASE.fullmatch(given)
    if a is None:
        return False
    if b is None:
        return given == a[1]
    return (a[1], int(a[2] or a[3])) == (b[1], int(b[2] or b[3]))


def _worth_algebra(text: str) -> bool:
    if len(text) > LONGEST or _MANY_DIGITS.search(text) or _HOPELESS.search(text):
        return False
    depth = deepest = 0
    for mark in text:
        depth += (mark in "{([") - (mark in "})]")
        deepest = max(deepest, depth)
    return deepest <= DEEPEST
