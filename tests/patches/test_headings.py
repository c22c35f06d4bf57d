"""Headings of hunks against git's own: what git wrote for a file is never refused there, and no twin is taken."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.stack.hunks.hunk_match import locate, misplaced
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk
from tests.patches.helpers import work_tree_diff

BODY = ("    x = prepare()", "    x = finish(x)", "    if x:", "        x = 2", "    return x", "")


def python(order: list[int], seed: int) -> list[str]:
    """Functions f0, f1, ... with one body for all, in the order given, some of them methods, some decorated."""
    dice = random.Random(seed)
    lines = ["import os", "", "X = 1"]
    for number in order:
        kind = (number * 7 + seed) % 4
        indent = "    " if kind == 1 else ""
        if kind == 1:
            lines += [f"class K{number}:", '    """def not_one(): a docstring."""', ""]
        if kind == 2:
            lines.append("@decorated(1)")
        lines.append(f"{indent}{'async ' if kind == 3 else ''}def f{number}(self, a=(1, 2)):")
        lines += [f"{indent}    log()"] * 3
        lines += [indent + line for line in BODY]
        lines += ["", f"Y{dice.randrange(3)} = [", "]"][: dice.randrange(4)]
    return lines


def diffs(old: list[str], new: list[str], context: int) -> list[bytes]:
    """The diff as git writes it: with its pattern for every language, and with that for Python."""
    sides = ["\n".join(lines) + "\n" for lines in (old, new)]
    with tempfile.TemporaryDirectory() as name:
        return [
            work_tree_diff(Path(name), "a.py", *sides, f"-U{context}", python=python)
            for python in (False, True)
        ]


def hunks(diff: bytes) -> tuple[Hunk, ...]:
    return parse_patch(diff, name="x").hunks


def function_at(lines: list[str], number: int) -> str:
    """The function whose body holds a line (from 1)."""
    return next(text.split("(")[0].split()[-1] for text in reversed(lines[:number]) if "def f" in text)


@pytest.mark.second
@settings(max_examples=int(os.environ.get("NPU_RL_HEADINGS", "25")), deadline=None)
@given(
    count=st.integers(2, 6),
    seed=st.integers(0, 999),
    context=st.sampled_from([1, 3, 3, 5, 12]),
    changed=st.sets(st.integers(0, 5), min_size=1, max_size=3),
    data=st.data(),
)
def test_a_hunk_stays_in_its_function(
    count: int, seed: int, context: int, changed: set[int], data: st.DataObject
) -> None:
    order = list(range(count))
    old = python(order, seed)
    bodies = [n for n, line in enumerate(old) if line.strip() == "x = finish(x)"]
    new = list(old)
    for index in {bodies[c % count] for c in changed}:
        new[index] = new[index].replace("finish(x)", "finish(x, npu=True)")
    other = python(data.draw(st.permutations(order)), seed)
    content, permuted = ("\n".join(lines).encode() + b"\n" for lines in (old, other))
    for diff in diffs(old, new, context):
        for hunk in hunks(diff):
            assert misplaced(content, hunk, hunk.old_index + 1, "a.py") is None
            location = locate(permuted, hunk)
            if location.kind not in ("exact", "offset"):
                continue
            assert location.line is not None
            if misplaced(permuted, hunk, location.line, "a.py") is None and "def " in hunk.section:
                at = next(hunk.changes()).at
                if (
                    "def f" not in b"".join(hunk.old_lines[:at]).decode()
                ):  # its heading is of the function it changes
                    assert function_at(old, hunk.old_index + at) == function_at(other, location.line - 1 + at)


TWIN = b"    a,\n    b,\n    c,\n"
SOURCE = b"class A:\n    def f(self):\n        pass\n\n\ndef one():\n" + TWIN + b"\n\ndef two():\n" + TWIN


def hunk(at: int, heading: str) -> Hunk:
    text = f"--- a/a.py\n+++ b/a.py\n@@ -{at},3 +{at},3 @@ {heading}\n     a,\n-    b,\n+    B,\n     c,\n"
    return hunks(text.encode())[0]


@pytest.mark.parametrize(
    ("at", "heading", "fits"),
    [
        (7, "def one():", True),
        (13, "def one():", False),
        (13, "def two():", True),
        (13, "async def two():", True),
        (13, "def two(a, b):", True),  # another signature, the same function
        (13, "class two:", False),
        (13, "def tw", False),  # no heading is cut so early
        (7, "def f(self):", False),
        (13, "", True),
        (13, "two = 2", True),  # no line of the file
        (13, "class A:", False),
    ],
)
def test_headings_of_python(at: int, heading: str, fits: bool) -> None:
    assert (misplaced(SOURCE, hunk(at, heading), at, "a.py") is None) == fits


def test_a_change_between_functions_is_in_none() -> None:
    """Its heading is the function above, whichever that is; not the method of another class."""
    constants = SOURCE + b"\n\nX = [\n" + TWIN + b"]\n"
    at = constants.split(b"\n").index(b"X = [") + 2
    assert misplaced(constants, hunk(at, "def one():"), at, "a.py") is None
    text = b"class A:\n    def f(self):\n        pass\n\n    def g(self):\n        pass\n\n" + TWIN
    attributes = text + text.replace(b"class A", b"class B").replace(b"def g", b"def h")
    for line, heading, fits in (
        (18, "def f(self):", True),
        (18, "def k(self):", True),
    ):
        assert attributes.split(b"\n")[line - 1] == b"    a,"
        assert (misplaced(attributes, hunk(line, heading), line, "a.py") is None) == fits, heading


def test_a_heading_that_was_cut(at: int = 2) -> None:
    """GNU diff keeps 40 letters, git 80, and a letter may be cut in two."""
    for name, kept in (("a" * 60, 40), ("b" * 100, 80), ("ä" * 60, 79)):
        source = f"def {name}():\n    a,\n    b,\n    c,\n".encode()
        cut = f"def {name}():".encode()[:kept].decode("utf-8", "replace")
        assert misplaced(source, hunk(at, cut), at, "a.py") is None
        assert misplaced(source.replace(b"def ", b"def x"), hunk(at, cut), at, "a.py") is not None
