"""What people read is plain English: markers of what sounded translated, and how many may stay.

Docstring heads, errors and help texts are found by their place, and every other string by its length: findings, notes,
figures of a plan, descriptions of keys and variables.

A marker is a signal and no verdict, so each package may have a few.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "npu_rl"
MARKERS = {
    "'is no X': write 'is not a X', 'unexpected X', 'unknown X'": (
        r"\b(?:is|are|was) no (?!longer|more|need|space|room left|such)\w+"
    ),
    "'is none', 'has none': name what is missing": r"\b(?:is|are|has|have) none\b",
    "software does not say, tell, ask or hear": r"\b(?:tells?|told|says?|said|asks?|asked|hears?)\b",
    "things are stored or located, they do not stand or lie": r"\b(?:stands?(?!-ins?\b| in\b)|stood|lies|lay|lain)\b",
    "starts with What, Whose, Which, How or Of": r"^(?:What|Whose|Which|How|Of)\b",
    "'by which', 'of whose': make two sentences": r"\b(?:by|of|with|from|in|for) (?:which|whose)\b",
    "archaic or translated": (
        r"\b(?:amid|anew|whatever|nobody|whoever|thereof|therein|likewise|besides|as of|one's)\b"
    ),
    "'go on', 'come back', 'give way': continue, resume, return, yield": (
        r"\b(?:go(?:es)? on|come?s? back|gives? way|is made of|at hand)\b"
    ),
    "more than two 'of'": r"\bof\b.*\bof\b.*\bof\b",
}
PATTERNS = {rule: re.compile(pattern, re.IGNORECASE) for rule, pattern in MARKERS.items()}
HELP = frozenset(
    (
        "help",
        "what",
        "why",
        "hint",
        "where",
        "message",
        "text",
        "title",
        "fix",
        "short_help",
        "epilog",
        "description",
    )
)
SMALL = 50  # strings of a package below which its share says little
WORDS = 4  # of a string that is a sentence, and not a name or an option
WORD = re.compile(r"[A-Za-z]{2,}")
PATTERN = re.compile(r"\\b|\(\?")
NOT_SHOWN = (
    "runtime",
    "recipes/faults/witnesses",
    "training/injected",
    "training/standins",
    "weights/tensors",
)


class Text(NamedTuple):
    """A text that people read, with its place."""

    package: str
    place: str
    text: str


@cache
def texts() -> tuple[Text, ...]:
    """Return the texts of all packages."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        for line, text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            found.append(Text(name.parts[0], f"npu_rl/{name}:{line}", text))
    return tuple(found)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield getattr(node, "lineno", 1), text.split("\n")[0]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _literals(*node.exc.args)
        elif isinstance(node, ast.Call):
            yield from _literals(*(word.value for word in node.keywords if word.arg in HELP))


@cache
def other_texts() -> tuple[Text, ...]:
    """Return the sentences of npu-rl's own process that are not in `texts`."""
    known = {(text.place, text.text) for text in texts()}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if not name.as_posix().startswith(NOT_SHOWN):
            for line, text in _sentences(ast.parse(path.read_text(encoding="utf-8"))):
                found.append(Text(name.parts[0], f"npu_rl/{name}:{line}", text))
    return tuple(text for text in found if (text.place, text.text) not in known)


def _sentences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):  # parents come first
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(node.value)  # a docstring
        elif isinstance(node, ast.JoinedStr):
            inside.update(node.values)
        if isinstance(node, ast.Constant | ast.JoinedStr) and node not in inside:
            for line, text in _literals(node):
                if len(WORD.findall(text)) >= WORDS and not PATTERN.search(text):
                    yield line, text


def _literals(*nodes: ast.expr) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))


def _marked(text: Text) -> list[str]:
    return [rule for rule, found in PATTERNS.items() if found.search(text.text)]


@pytest.mark.parametrize("found", [texts, other_texts])
def test_few_strings_have_a_marker(found: Callable[[], tuple[Text, ...]]) -> None:
    """At most 3 % in a package, and 2 % over all."""
    counts: dict[str, int] = defaultdict(int)
    marked: dict[str, list[str]] = defaultdict(list)
    for text in found():
        counts[text.package] += 1
        if rules := _marked(text):
            marked[text.package].append(f"{text.place}: {text.text}\n      {'; '.join(rules)}")
    told = {name: "\n".join(lines) for name, lines in marked.items()}
    assert sum(map(len, marked.values())) <= 0.02 * len(found()), "\n".join(told.values())
    for package, count in counts.items():
        if count > SMALL:
            assert len(marked[package]) <= 0.03 * count, told[package]
