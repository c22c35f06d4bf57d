"""What a package rebinds in another when it is imported, read from its text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npu_rl.workspace.summary.rebindings import rebindings_in_file
from tests.support import ok, run_program


def found(text: str, path: str = "mine/patch.py") -> list[tuple[str, str, str, bool, int]]:
    return [
        (one.target, one.value, one.how, one.registered, one.line)
        for one in rebindings_in_file(path, text.encode())
    ]


@pytest.mark.parametrize(
    ("text", "rebinding"),
    [
        ("import a.b\na.b.f = g", ("a.b.f", "g", "replaced", False, 2)),
        ("from a import b\nb.C.f = g(1)", ("a.b.C.f", "g(1)", "replaced", False, 2)),
        ("from a import b\nsetattr(b, 'f', g)", ("a.b.f", "g", "replaced", False, 2)),
        ("def r(pm):\n  pm.register_patch('a.b.f', g)", ("a.b.f", "g", "replaced", True, 2)),
        ("M.register_patch('a.b.f', f_wrapper)", ("a.b.f", "f_wrapper", "wrapped", True, 1)),
        ("M.register_patch('a.b', create_dummy=True)", ("a.b", "", "registered", True, 1)),
    ],
)
def test_a_rebinding(text: str, rebinding: tuple[str, str, str, bool, int]) -> None:
    assert found(text) == [rebinding]


@pytest.mark.parametrize(
    "text",
    [
        "import a\na = 1",
        "from . import b\nb.f = g",
        "import a\ndef later():\n  a.f = g",
        "M.register_patch('f', g)",
        "import a\na.f = (",
    ],
    ids=range(5),
)
def test_what_is_none(text: str) -> None:
    assert found(text) == []


def test_what_is_found_is_what_python_rebinds(tmp_path: Path) -> None:
    """Import such a module for real: the names that it was said to rebind have changed, and no others."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/__init__.py").write_text("f = g = h = k = 0\nclass C:\n  m = n = 0\n")
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import other\nfrom other import C as D\nother.f = 1\nsetattr(other, 'g', 1)\nD.m = 1\n"
        "def later():\n  other.h = 1\n  D.n = 1\nk = 1\n"
    )
    code = (
        "import other\nnames = [('other', n) for n in 'fghk'] + [('other.C', n) for n in 'mn']\n"
        "import mine\n"
        "print(sorted(f'{o}.{n}' for o, n in names if getattr(other.C if 'C' in o else other, n)))"
    )
    ran = ok(run_program([sys.executable, "-c", code], cwd=tmp_path))
    assert ran.stdout.strip() == str(sorted(one[0] for one in found(mine.read_text(), "mine.py")))
