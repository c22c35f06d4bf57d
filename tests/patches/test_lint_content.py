"""What patches change: more lines than needed, and Python that breaks."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.stack.lint.lint_patches import AgainstFolder, lint_patches
from npu_rl.stack.lint.lint_report import LintFinding
from tests.patches.helpers import edits, git_diff, plain_diff

OLD = b"""\
import os
from math import sqrt


def one(x):
    return os.fspath(x)


def two(x):
    return sqrt(x)
"""


def found(rule: str, old: bytes | None, patch: bytes, *, against: bool = True) -> list[LintFinding]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pkg").mkdir()
        if old is not None:
            (folder / "pkg/a.py").write_bytes(old)
        (folder / "x.patch").write_bytes(patch)
        files = AgainstFolder(folder) if against else None
        findings = lint_patches(folder / "x.patch", against=files).findings
        assert not [one for one in findings if one.rule == "does-not-apply"]
        return [one for one in findings if one.rule == rule]


def changed(patch: bytes) -> int:
    lines = patch.split(b"\n@@", 1)[1].splitlines()
    return sum(line[:1] in (b"+", b"-") for line in lines)


WHOLE = b"""\
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,4 +1,4 @@
-one
-two
-three
-four
+one
+TWO
+three
+four
"""


@pytest.mark.parametrize("against", [True, False])
def test_a_patch_that_replaces_equal_lines(against: bool) -> None:
    (finding,) = found("minimal", b"one\ntwo\nthree\nfour\n", WHOLE, against=against)
    assert (
        finding.severity.value == "advice"
        and "changes 8 lines, and `git diff --minimal` 2" in finding.message
    )


@given(
    st.lists(st.sampled_from([b"", b"a", b"b", b"c", b"d"]), min_size=1, max_size=25).map(b"\n".join),
    st.data(),
)
@settings(max_examples=25, deadline=None)
def test_smaller_is_what_git_says(old: bytes, data: st.DataObject) -> None:
    """difflib's diffs of repetitive text are often larger than needed; those of `git diff --minimal` never."""
    new = data.draw(edits(old, rich=False)) + data.draw(st.sampled_from([b"", b"a\nb", b"b\n\na"]))
    assume(old != new)
    smallest = git_diff(old, new, "--minimal")
    assert found("minimal", old, smallest) == []
    assert found("minimal", old, smallest, against=False) == []
    other = plain_diff(old, new)
    assert len(found("minimal", old, other)) == (changed(other) > changed(smallest))


def names(old: bytes | None, new: bytes) -> list[str]:
    findings = found("names", old, git_diff(old, new))
    assert all(one.severity.value == "error" for one in findings)
    return [one.message for one in findings]


def test_a_name_that_nothing_defines() -> None:
    new = OLD.replace(b"    return sqrt(x)", b"    y = floor(x)\n    return sqrt(y)")
    (finding,) = found("names", OLD, git_diff(OLD, new))
    assert finding.message == "nothing in pkg/a.py defines or imports floor, which line 10 uses"
    diff = git_diff(OLD, new).splitlines()
    assert b"floor" in diff[finding.line - 1]
    assert names(OLD, new.replace(b"import sqrt", b"import floor, sqrt")) == []
    assert len(names(None, new)) == 1


def test_an_import_that_is_gone() -> None:
    (message,) = names(OLD, OLD.replace(b"import os\n", b""))
    assert message == "pkg/a.py still uses os in line 5, and nothing defines or imports it any more"


def test_what_was_undefined_before_is_not_the_patchs() -> None:
    old = OLD + b"\n\nprint(injected)\n"
    assert names(old, old.replace(b"print(injected)", b"print(injected, injected)")) == []


@pytest.mark.parametrize(
    ("path", "new", "undefined"),
    [
        ("pkg/__init__.py", b"__path__ = extended(__path__)\n", ["extended"]),
        ("pkg/a.py", b"print(__path__, __cached__)\n", ["__path__"]),
        ("pkg/a.pyi", b"class A(B):\n    def f(self) -> C: ...\n\nclass B: ...\n", ["C"]),
        ("pkg/a.py", b"class A(B): ...\n\nclass B: ...\n", ["B"]),
    ],
)
def test_names_that_the_kind_of_file_defines(path: str, new: bytes, undefined: list[str]) -> None:
    """A package has a path, and a stub may use names above their definitions."""
    findings = found("names", None, git_diff(None, new, path=path), against=False)
    assert [one.message.split()[-5].rstrip(",") for one in findings] == undefined


@pytest.mark.parametrize(
    ("old", "new", "severity"),
    [
        (OLD, OLD.replace(b"def two(x):", b"def two(x:"), "error"),
        (OLD, OLD + b"return 1\n", "error"),  # parses, and does not compile
        (b"print 1\n", b"print 2\n", "note"),
        (OLD, OLD + b"x = [" + b"1, " * 90_000 + b"]\n", "note"),
        (None, b"def f(:\n", "error"),
        (OLD, OLD + b"x = '\\d'\n", None),  # only a warning
    ],
)
def test_python_that_does_not_compile(old: bytes | None, new: bytes, severity: str | None) -> None:
    findings = found("python", old, git_diff(old, new))
    assert [one.severity.value for one in findings] == ([severity] if severity else [])


def test_a_new_file_is_compiled_without_against() -> None:
    assert len(found("python", None, git_diff(None, b"def f(:\n"), against=False)) == 1
    assert len(found("names", None, git_diff(None, b"x = y\n"), against=False)) == 1


def test_nothing_of_a_checked_file_stays_in_the_nodes_of_others() -> None:
    """An operator is one node in all trees: through it a walk over the next one went through all before, and on."""
    old = OLD + b"\n\nprint(injected + 1)\n"
    assert names(old, old.replace(b"+ 1", b"+ injected")) == []
    (statement,) = ast.parse("a + b").body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.BinOp)
    assert vars(statement.value.op) == {}
