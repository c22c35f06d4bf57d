r"""Convert TeX's and Unicode's spellings of a value to a single one, so that most answers need no algebra.

Commands that only affect typesetting are removed: `\left`, thin spaces, `$`, `\displaystyle`, degree signs. Nothing
here depends on the right answer, and every regular expression takes time linear in the length of the text.
"""

from __future__ import annotations

import re

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)) | {"⁻": "-", "ⁿ": "n"}
_SIGNS = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ",
    "θ": r"\theta ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": "", "′": "'",
    "％": r"\%", "⁄": "/",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}",
    "⅚": r"\frac{5}{6}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ", "\u200b": "", "\ufeff": "", "，": ",", "。": ".",
}  # fmt: skip
_TABLE = str.maketrans({chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | _SIGNS)
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[A-Za-z]))")

_RULES = [
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\\(?:left|right|displaystyle|textstyle|bigl?|bigr|Bigl?|Bigr|limits)(?![A-Za-z])", ""),
        (r"(?<!\\)\\[()\[\]]|(?<!\\)\$|\\\$|\\pounds(?![A-Za-z])|€|£", ""),  # mathematics and money marks
        (r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])|\\thinspace(?![A-Za-z])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:mathrm|textrm|textbf|textit|mbox|textnormal|operatorname)(?![A-Za-z])\*?", r"\\text"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", ""),
        (r"\\(?:leq|leqslant)(?![A-Za-z])", r"\\le"),
        (r"\\(?:geq|geqslant)(?![A-Za-z])", r"\\ge"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"(?<!\\)%", r"\\%"),
        (r"\s+", " "),
    )
]
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WRAPPED = re.compile(r"\\(?:text|boxed|mathbf|mathit|mathsf)\s*\{")


def one_spelling(text: str) -> str:
    """Return the text in the spelling that the other modules compare. It is mostly idempotent."""
    text = _SUPERSCRIPT.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    text = _ROOT.sub(lambda m: r"\sqrt{" + next(g for g in m.groups() if g is not None) + "}", text)
    text = text.translate(_TABLE)
    for pattern, to in _RULES:
        text = pattern.sub(to, text)
    text = _TEXT.sub(_without_numbers, text)
    return _unwrapped(text.strip().rstrip(".,;: "))


def _without_numbers(text: re.Match[str]) -> str:
    """Unwrap a `\\text{}` that has a number; any other is a unit. Otherwise `5\\text{ or 6}` would be 5."""
    return f" {text[1].strip()} " if any(c.isdigit() for c in text[1]) else text[0]


def _unwrapped(text: str) -> str:
    r"""Return x for `\text{x}`, `\boxed{x}` or `{x}` that make up the whole text."""
    for _ in range(8):
        wrapped = _WRAPPED.match(text)
        begin = wrapped.end() if wrapped else 1 if text[:1] == "{" else 0
        if not begin or not _closes_last(text, begin):
            break
        text = text[begin:-1].strip().rstrip(".,;: ")
    return text


def _closes_last(text: str, begin: int) -> bool:
    """Return whether the brace opened just before `begin` closes at the very end."""
    depth = 1
    for mark in re.finditer(r"\\.|[{}]", text[begin:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth == 0:
            return begin + mark.end() == len(text)
    return False
