"""The questions about places: another function, a second time, a part left out."""

from __future__ import annotations

import difflib

import pytest

from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.port.placement_check import enclosing, place_questions

TWINS = (
    "class A:\n    def run(self):\n        one = 1\n        return one\n\n\n"
    "def run():\n    one = 1\n    return one\n"
)
METHOD = TWINS.replace("        one = 1\n", "        one = 1\n        one = one + 1000\n", 1)
WORDS = "int first()\n{\n    return 1;\n}\nint second()\n{\n    return 1;\n}\n"


def diff(before: str, after: str, path: str = "a.py") -> Patch:
    lines = (text.splitlines(keepends=True) for text in (before, after))
    text = "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))
    return parse_patch(f"Subject: x\n---\n{text}".encode(), name="x")


def asked(
    old: tuple[str, str], new: tuple[str, str], *, path: str = "a.py", by_hand: bool = False
) -> list[str]:
    patches = diff(*old, path), diff(*new, path)
    texts = (old[0].encode(), new[0].encode())
    return [*place_questions(*patches, lambda _: texts[0], lambda _: texts[1], by_hand=by_hand)]


def test_the_same_function_further_down_is_no_question() -> None:
    assert asked((TWINS, METHOD), (f"import os\n\n{TWINS}", f"import os\n\n{METHOD}")) == []


def test_another_function() -> None:
    old = "def run():\n    one = 1\n    one = 2\n", "def run():\n    one = 1\n    one = 3\n"
    new = "def walk():\n    one = 1\n    one = 2\n", "def walk():\n    one = 1\n    one = 3\n"
    assert asked(old, new) == ["a.py:3: it was in run, and is in walk now"]
    assert asked(old, new, by_hand=True) == asked(old, new)


def test_gits_heading_in_other_files() -> None:
    first, second = WORDS.replace("return 1", "return 2", 1), WORDS[::-1].replace(";1 ", ";2 ", 1)[::-1]
    assert asked((WORDS, first), (WORDS, second), path="a.c") == [
        "a.c:7: it was in int first(), and is in int second() now"
    ]


def test_a_line_that_upstream_has_meanwhile() -> None:
    old = "def f():\n    a = 1\n", "def f():\n    call_it_once()\n    a = 1\n"
    above = "def g():\n    call_it_once()\n\n\n"
    (question,) = asked(old, (above + old[0], above + old[1]))
    assert question == "a.py:6: upstream has this line meanwhile: call_it_once()"


def test_a_part_that_is_left_out_or_changed_unless_by_hand() -> None:
    old = "a = 1\n" + "x = 0\n" * 9 + "b = 1\n"
    both, one = old.replace("= 1", "= 2"), old.replace("a = 1", "a = 2")
    assert asked((old, both), (old, one)) == ["a.py: its change at line 11 of the old version is left out"]
    assert "not changed as in the patch" in asked((old, one), (old, old.replace("a = 1", "a = 3")))[0]
    assert asked((old, both), (old, old.replace("= 1", "= 3")), by_hand=True) == []


@pytest.mark.parametrize(
    ("index", "path", "expected"),
    [(2, "a.py", "A.run"), (7, "a.py", "run"), (0, "a.py", "A"), (4, "a.py", ""), (2, "a.txt", "class A:")],
)
def test_enclosing(index: int, path: str, expected: str) -> None:
    assert enclosing(TWINS.encode(), index, path) == expected
    assert enclosing(b"def f(:\n  x\n", 1, "broken.py") == "def f(:"
