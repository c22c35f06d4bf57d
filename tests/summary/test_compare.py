"""Two versions of a Python file, compared by what they define."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.workspace.summary.compare import compare


def told(before: str, after: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    changes = compare(before.encode(), after.encode())
    assert changes is not None
    return [(one.change, one.kind, one.name, one.details) for one in changes]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("", "x = 1", ("added", "module attribute", "x", ("1",))),
        ("x = 1", "x = 2", ("replaced", "module attribute", "x", ("value 1 -> 2",))),
        ("", "from a import b as c", ("added", "import", "c", ("from a import b as c",))),
        ("import a", "import b as a", ("replaced", "import", "a", ("import import a -> import b as a",))),
        ("def f(): return 1", "def f(): return 2", ("replaced", "function", "f", ("body",))),
        ("def f(a): pass", "def f(a, *, b): pass", ("replaced", "function", "f", ("signature (a) -> (a, *, b)",))),
        ("@a\ndef f(): pass", "@b\ndef f(): pass", ("replaced", "function", "f", ("decorators -@a +@b",))),
        ("def f(): '''a'''", "def f(): '''b'''", ("replaced", "function", "f", ("docstring",))),
        ("class A: pass", "class A(B, m=C): pass", ("replaced", "class", "A", ("bases () -> (B, m=C)",))),
        ("", "class A(B):\n x = 1\n def f(self): pass", ("added", "class", "A", ("bases (B)", "with x, f"))),
        ("class A:\n x = 1\n def f(self): pass", "class A:\n x = 1",
         ("removed", "method", "A.f", ("(self)",))),
        ("class A:\n class B: pass", "class A:\n class B:\n  def f(self): pass",
         ("added", "method", "A.B.f", ("(self)",))),
        ("", "a.b = c", ("added", "statement", "a.b = c", ())),
        ("try:\n f()\nexcept A: pass", "try:\n f()\nexcept B: pass", ("added", "statement", "except B:", ())),
        ("if a:\n x = 1", "if a:\n x = 1\nelse:\n x = 2",
         ("replaced", "module attribute", "x", ("defined 2 times, before once",))),
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


@pytest.mark.parametrize(
    "content", [b"def f(:", b"\0", b"\xff\xfe", b"x = " + b"(" * 5000 + b")" * 5000, b"-" * 90_000 + b"1"]
)
def test_what_is_no_python_is_not_compared(content: bytes) -> None:
    assert compare(content, b"x = 1") is None
    assert compare(b"x = 1", content) is None


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
