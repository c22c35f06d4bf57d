"""Parsing in two stages reads what the full one reads, and each stage is needed."""

from __future__ import annotations

from typing import Any

import pytest

from npu_rl.runtime.deepscaler import two_stage
from npu_rl.runtime.deepscaler.equality import spelled
from tests.runtime.deepscaler_pairs import DIFFERENT, DIFFERENT_BY_ALGEBRA, HEDGED, SAME, SAME_BY_ALGEBRA

pytest.importorskip("math_verify")
latex2sympy: Any = pytest.importorskip("latex2sympy2_extended.latex2sympy2")

PAIRS = [*SAME, *SAME_BY_ALGEBRA, *DIFFERENT, *DIFFERENT_BY_ALGEBRA, *HEDGED]
TEXTS = sorted({spelled(text) for pair in PAIRS for text in pair})


def parsed(text: str, *, fully: bool) -> str:
    """The tree that is read, as text; or "error"."""
    two_stage.install()
    parser = latex2sympy._Latex2Sympy().create_parser(text)
    math = latex2sympy.PSParser.math
    try:
        tree = (math.__wrapped__ if fully else math)(parser)
    except Exception:  # noqa: BLE001 - latex2sympy2 raises this very class
        return "error"
    return str(tree.toStringTree(recog=parser))


@pytest.mark.second
def test_it_reads_what_the_full_stage_reads() -> None:
    assert [text for text in TEXTS if parsed(text, fully=False) != parsed(text, fully=True)] == []


@pytest.mark.parametrize(("text", "stages"), [(r"\frac{3}{7}", 1), ("x^2+1", 2), ("x^", 2)])
def test_the_second_stage_is_for_what_the_first_cannot_read(
    text: str, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_stage.install()
    modes: list[int] = []
    parser = latex2sympy._Latex2Sympy().create_parser(text)
    predict = parser._interp.adaptivePredict

    def noted(*arguments: Any) -> Any:
        modes.append(parser._interp.predictionMode)
        return predict(*arguments)

    monkeypatch.setattr(parser._interp, "adaptivePredict", noted)
    if not text.endswith("^"):
        parser.math()
    else:
        with pytest.raises(Exception, match=r"I expected one of these|I expected something else"):
            parser.math()
    assert len(set(modes)) == stages
