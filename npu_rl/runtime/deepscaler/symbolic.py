"""Comparison by algebra with math-verify, which parses TeX into SymPy. It runs only in processes that may be killed.

Needs math-verify 0.9 with latex2sympy2-extended 1.11; ANTLR 4.9.3, which omegaconf requires, is sufficient.
"""

from __future__ import annotations

import functools
import importlib
import logging
import random
import warnings
from typing import Any

from . import two_stage

LIBRARY = "math_verify"

# Parsing builds its tables as it meets new forms; processes forked after this have them.
_WARM_UP = [
    (r"\frac{1}{2}", r"\sqrt{8}"), (r"2\sqrt{2}", r"\sqrt{8}"), (r"x^2+2x+1", r"(x+1)^2"), (r"\{1,2\}", "2,1"),
    ("(1,2)", r"[0,\infty)"), (r"x \le 2", r"(-\infty,2]"), (r"\pm 2", "2,-2"),
    (r"\frac{\pi}{3}", r"\sin x + \log_2 8"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "3+4i"), (r"5\text{ cm}", "x=5"), (r"\binom{5}{2}", "10!"),
    (r"(-1,2)\cup(3,4]", r"x\in(-1,2)"), (r"2^{n-1}", r"\frac{3 \cdot 2^{n}}{6}"), ("|x|", r"\sqrt[3]{2}"),
]  # fmt: skip


def load() -> None:
    """Import the library and parse each form once. Raises ImportError if it is not installed."""
    warnings.simplefilter("ignore")
    logging.disable(
        logging.CRITICAL
    )  # it warns once per process that its own time limits are off: ours replace them
    importlib.import_module(LIBRARY)
    two_stage.install()
    for right, given in _WARM_UP:
        same_by_algebra(right, given)


def same_by_algebra(right: str, given: str) -> bool:
    """Return whether the library finds them equal. It catches its own errors; unparsable text equals nothing.

    Time and memory are limited by the caller only.
    """
    library: Any = importlib.import_module(LIBRARY)
    random.seed(0)  # SymPy tries values at random to tell expressions apart
    importlib.import_module("sympy.core.random").seed(0)
    a, b = _parsed(library, right), _parsed(library, given)
    if not a or not b:
        return False
    return bool(library.verify(a, b, allow_set_relation_comp=True, timeout_seconds=None)) and _same_size(
        a[0], b[0]
    )


@functools.lru_cache(maxsize=512)  # the right answer comes again with each sample of its problem
def _parsed(library: Any, text: str) -> list[Any]:
    """Parse TeX only: by default the library takes a number from anywhere in a text, which rewards lists of guesses."""
    only_tex = [library.LatexExtractionConfig()]
    found: list[Any] = library.parse(f"${text}$", only_tex, fallback_mode="no_fallback", parsing_timeout=None)
    return found


def _same_size(a: Any, b: Any) -> bool:
    """Return False for numbers that agree only after rounding to the library's six places, like 10^{-9} and 0."""
    if not (getattr(a, "is_number", False) and getattr(b, "is_number", False)):
        return True
    x, y = complex(a), complex(b)
    return abs(x - y) <= 1e-6 * max(abs(x), abs(y)) or x == y
