"""Two versions of a Python file, compared by what they define."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.workspace.summary.compare import compare
from tests.support import ROOT


def told(before: str, after: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    changes = compare(before.encode(), after.encode())
    assert changes is not None
    return [(one.change, one.kind, one.name, one.details) for one in changes]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("", "x = 1", ("added", "module attribute", "x", ("1",))),
        ("", "x: int = 1", ("added", "module attribute", "x", ("int = 1",))),
        ("x = 1", "x = 2", ("replaced", "module attribute", "x", ("value 1 -> 2",))),
        ("x = y = 1", "x = 1", ("removed", "module attribute", "y", ("1",))),
        ("", "from a import b as c", ("added", "import", "c", ("from a import b as c",))),
        ("", "from a import *", ("added", "import", "from a import *", ("from a import *",))),
        ("import a", "import b as a", ("replaced", "import", "a", ("import import a -> import b as a",))),
        ("", "def f(a, b=1): pass", ("added", "function", "f", ("(a, b=1)",))),
        ("def f(): pass", "", ("removed", "function", "f", ("()",))),
        ("def f(): return 1", "def f(): return 2", ("replaced", "function", "f", ("body",))),
        ("def f(a): pass", "def f(a, *, b): pass", ("replaced", "function", "f", ("signature (a) -> (a, *, b)",))),
        ("def f(): pass", "async def f(): pass", ("replaced", "function", "f", ("signature () -> async ()",))),
        ("def f(): pass", "def f() -> int: pass", ("replaced", "function", "f", ("signature () -> () -> int",))),
        ("@a\ndef f(): pass", "@b\ndef f(): pass", ("replaced", "function", "f", ("decorators -@a +@b",))),
        ("@a\n@b\ndef f(): pass", "@b\n@a\ndef f(): pass",
         ("replaced", "function", "f", ("decorators in another order",))),
        ("def f(): '''a'''", "def f(): '''b'''", ("replaced", "function", "f", ("docstring",))),
        ("'''a'''", "'''b'''", ("replaced", "module", "docstring", ())),
        ("class A: pass", "class A(B, m=C): pass", ("replaced", "class", "A", ("bases () -> (B, m=C)",))),
        ("", "class A(B):\n x = 1\n def f(self): pass", ("added", "class", "A", ("bases (B)", "with x, f"))),
        ("class A:\n x = 1\n def f(self): pass", "class A:\n x = 1",
         ("removed", "method", "A.f", ("(self)",))),
        ("class A:\n x = 1", "class A:\n x = 2", ("replaced", "class attribute", "A.x", ("value 1 -> 2",))),
        ("class A:\n class B: pass", "class A:\n class B:\n  def f(self): pass",
         ("added", "method", "A.B.f", ("(self)",))),
        ("", "a.b = c", ("added", "statement", "a.b = c", ())),
        ("x()", "", ("removed", "statement", "x()", ())),
        ("try:\n f()\nexcept A: pass", "try:\n f()\nexcept B: pass", ("added", "statement", "except B:", ())),
        ("if a:\n x = 1", "if a:\n x = 1\nelse:\n x = 2",
         ("replaced", "module attribute", "x", ("defined 2 times, before once",))),
        ("if a:\n x = 1\nelse:\n x = 2", "if a:\n x = 1\nelse:\n x = 3",
         ("replaced", "module attribute", "x", ("value 2 -> 3",))),
        ("match a:\n case 1:\n  x = 1", "match a:\n case 1:\n  x = 2",
         ("replaced", "module attribute", "x", ("value 1 -> 2",))),
    ],
)  # fmt: skip
def test_a_change(before: str, after: str, change: tuple[str, str, str, tuple[str, ...]]) -> None:
    assert change in told(before, after)
    other = {"added": "removed", "removed": "added", "replaced": "replaced"}[change[0]]
    assert (other, *change[1:3]) in [one[:3] for one in told(after, before)]


def test_a_new_class_is_one_change() -> None:
    assert len(told("", "class A:\n x = 1\n class B:\n  def f(self): pass")) == 1


def test_of_a_long_signature_only_what_differs_is_shown() -> None:
    many = ", ".join(f"parameter_{number}=None" for number in range(9))
    before, after = f"def f({many}, *a, **k): pass", f"def f({many}, *a, last: int = 3, **k): pass"
    assert told(before, after) == [("replaced", "function", "f", ("signature +last: int = 3",))]
    assert told(after, before) == [("replaced", "function", "f", ("signature -last: int = 3",))]


def test_comments_and_layout_count_for_nothing() -> None:
    assert (
        told("x = 1\ndef f(a):\n  return a", "# why\nx   = (1)\n\n\ndef f( a ):\n    # so\n    return a")
        == []
    )


def test_lines_are_those_of_the_file_that_has_it() -> None:
    changes = compare(b"\n\nold = 1\n", b"\n\n\n\n@d\ndef new(): pass\n")
    assert changes is not None
    assert [(one.change, one.line) for one in changes] == [("added", 6), ("removed", 3)]


@pytest.mark.parametrize(
    "content", [b"def f(:", b"\0", b"\xff\xfe", b"x = " + b"(" * 5000 + b")" * 5000, b"-" * 90_000 + b"1"]
)
def test_what_is_no_python_is_not_compared(content: bytes) -> None:
    assert compare(content, b"x = 1") is None
    assert compare(b"x = 1", content) is None


SAMPLES = sorted((ROOT / "npu_rl").rglob("*.py"))


@pytest.mark.parametrize("path", SAMPLES[:: max(1, len(SAMPLES) // 25)], ids=lambda path: path.stem)
def test_a_file_written_anew_by_python_is_the_same(path: object) -> None:
    content = path.read_bytes()  # type: ignore[attr-defined]
    rewritten = ast.unparse(ast.parse(content)).encode()
    assert compare(content, content) == []
    assert compare(content, rewritten) == []


PARTS = st.lists(
    st.sampled_from(
        ["x = 1", "x = 2", "import a", "def f(): pass", "def f(a): return a", "class A:\n  y = 1\n  def f(self): pass",
         "class A(B):\n  def f(self): return 1", "a.b = c", "if a:\n  z = 1\nelse:\n  def z(): pass"]
    ),
    max_size=6,
)  # fmt: skip


@given(PARTS, PARTS)
def test_backwards_it_is_the_same_change(before: list[str], after: list[str]) -> None:
    other = {"added": "removed", "removed": "added", "replaced": "replaced"}
    forth, back = told("\n".join(before), "\n".join(after)), told("\n".join(after), "\n".join(before))
    assert sorted((other[one[0]], *one[1:3]) for one in forth) == sorted(one[:3] for one in back)
    assert (forth == []) == (told("\n".join(after), "\n".join(after)) == forth)
