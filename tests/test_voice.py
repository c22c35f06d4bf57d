"""What people read is plain English: markers of what sounded translated, and how many may stay.

Docstring heads, errors and help texts are found by their place, and every other string by its length: findings, notes,
figures of a plan, descriptions of keys and variables.

A marker is a signal, not a verdict: INNOCENT lists the strings that have one and read well, each with its reason.
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
    "'is none', 'has none': name what is missing": r"\b(?:is|are|has|have) (?-i:none)\b",  # not Python's None
    "software does not say, tell, ask, hear, speak or look": (
        r"\b(?:tells?|told|says?|said|asks?|asked|hears?|speaks?|spoke|looks (?!like\b|up\b)|looked (?!up\b))\b"
    ),
    "'has no place': unexpected, unknown": r"\bha(?:s|ve) no place\b",
    "a fix is a command or an edit, not 'correct these lines'": r"^correct th(?:is|ese) lines?\b",
    "things are stored or located, they do not stand or lie": r"\b(?:stands?(?!-ins?\b| in\b)|stood|lies|lay|lain)\b",
    "starts with What, Whose, Which, Whether, How or Of": r"^(?:What|Whose|Which|Whether|How|Of)\b",
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
INNOCENT = {
    "of which {} are estimates": "counts gigabytes",
    "The module from which vLLM imports PagedAttention.": "names the direction of an import",
    "the template {} asks for {}": "a template is a prompt, which asks the model for a form of answer",
    "prompts of {} ask for {}": "prompts ask the model",
    "makes prompts that ask for it": "prompts ask the model",
    "its prompts ask for {}": "prompts ask the model",
    "`asked` has its URL after rewriting": "the name of an attribute",
    "full: also lay the whole patched repository": "the transitive verb; setup's commits have it",
    "Lay npu_rl_runtime into the code tree.": "the transitive verb; setup's commits have it",
    "Lay the runtime": "the subject of a commit in every workspace, part of its id",
    "There is no reward.": "a sentence of its own, with a subject",
}
MOST_INNOCENT = 40
SMALL = 50  # strings of a package below which its share says little
WORDS = 4  # of a string that is a sentence, and not a name or an option
WORD = re.compile(r"[A-Za-z]{2,}")
PATTERN = re.compile(r"\\b|\(\?")
NOT_SHOWN = (
    "runtime",
    "training/injected",
    "rehearsal/injected",
    "rehearsal/standins",
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


def _innocent(text: Text) -> bool:
    return any(part in text.text for part in INNOCENT)


@pytest.mark.second
@pytest.mark.parametrize("found", [texts, other_texts])
def test_few_strings_have_a_marker(found: Callable[[], tuple[Text, ...]]) -> None:
    """At most 2 % in a package, and 1 % over all."""
    counts: dict[str, int] = defaultdict(int)
    marked: dict[str, list[str]] = defaultdict(list)
    for text in found():
        counts[text.package] += 1
        if (rules := _marked(text)) and not _innocent(text):
            marked[text.package].append(f"{text.place}: {text.text}\n      {'; '.join(rules)}")
    told = {name: "\n".join(lines) for name, lines in marked.items()}
    assert sum(map(len, marked.values())) <= 0.01 * len(found()), "\n".join(told.values())
    for package, count in counts.items():
        if count > SMALL:
            assert len(marked[package]) <= 0.02 * count, told[package]


@pytest.mark.parametrize("part", INNOCENT)
@pytest.mark.second
def test_innocent_string_is_unique_and_has_a_marker(part: str) -> None:
    """An entry that excuses nothing, or more than the string it was written for, is removed or mended."""
    listed = {text.text for text in (*texts(), *other_texts()) if part in text.text}
    assert len(listed) == 1, listed
    assert all(_marked(text) for text in (*texts(), *other_texts()) if part in text.text)


def test_list_of_innocent_strings_is_short() -> None:
    """A long list would hide a relapse."""
    assert len(INNOCENT) <= MOST_INNOCENT
    assert all(INNOCENT.values())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Whether a run is in progress.", 1),
        ("Return the run, or None if there are None.", 0),
        ("the folder has none", 1),
        ("The reward looks for an answer.", 1),
        ("It looks like a patch.", 0),
        ("the model has no place for 3 tensors", 1),
        ("Correct these lines and run the command again.", 1),
    ],
)
def test_marker_matches(text: str, count: int) -> None:
    """Python's None is not the word, and what looks like something is only compared."""
    assert len(_marked(Text("", "", text))) == count
