"""What patches change: more lines than needed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.stack.lint.lint_patches import AgainstFolder, lint_patches
from npu_rl.stack.lint.lint_report import LintFinding
from tests.patches.helpers import edits, git_diff, plain_diff


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
