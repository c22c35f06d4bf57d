"""Two-stage parsing: ANTLR's fast prediction first, and full prediction if it fails.

latex2sympy2's parsers predict with the whole context (LL), which took about half of a comparison's time. Without
it (SLL) a parse either fails or yields the same result as LL: T. Parr, S. Harwell, K. Fisher, "Adaptive LL(*) Parsing",
OOPSLA 2014; antlr4.atn.PredictionMode. That holds for a parse of the whole input. The grammar's first rule doesn't
require the end of the input, so a parse that stops early counts as failed.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def install() -> None:
    """Make latex2sympy2's parser work in two stages, in this process."""
    antlr: Any = importlib.import_module("antlr4")
    mode: Any = importlib.import_module("antlr4.atn.PredictionMode").PredictionMode
    parser: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2").PSParser
    whole = parser.math

    @functools.wraps(whole)
    def math(self: Any) -> Any:
        self._interp.predictionMode = mode.SLL
        try:
            tree = whole(self)
            if self._input.LA(1) == antlr.Token.EOF:
                return tree
        except Exception:  # noqa: BLE001 - latex2sympy2 raises this very class for any error of syntax
            pass
        self.reset()
        self._interp.predictionMode = mode.LL
        return whole(self)

    parser.math = math
