"""What git wrote lints clean, and `--fix` of a damaged patch gives back what git wrote."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import UsageError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_patches import lint_patches
from npu_rl.stack.lint.lint_report import LintReport
from npu_rl.stack.lint.mechanical_repair import Repair
from tests.in_process import run_here
from tests.patches.helpers import contents, edits, git, git_diff
from tests.support import clean_env

MAIL = b"From: a\nSubject: [PATCH] x\n\nwhy\n---\n f | 1 +\n\n%s-- \n2.39.5\n\n"
COUNTS = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.M)


def linted(data: bytes, *, fix: bool = False) -> tuple[LintReport, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.patch"
        file.write_bytes(data)
        return lint_patches(file, fix=fix), file.read_bytes()


def errors(report: LintReport) -> list[str]:
    """The errors that are left, but for those about Python, which the made files are not."""
    left = [found for found in report.findings if found.severity is Severity.ERROR and not found.fixed]
    return [found.text() for found in left if found.rule not in ("python", "names")]


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A patch of git's, of a file that changes, is new or is gone; as a mail or bare."""
    old = draw(st.none() | contents())
    new = draw(contents()) if old is None else draw(st.none() | edits(old))
    assume(old != new)
    diff = git_diff(old, new, f"-U{draw(st.sampled_from([0, 1, 3]))}")
    assume(b"\n@@" in diff)
    return MAIL % diff if draw(st.booleans()) else diff


@given(written())
@settings(max_examples=25, deadline=None)
def test_what_git_wrote_lints_clean(diff: bytes) -> None:
    report, after = linted(diff, fix=True)
    assert errors(report) == []
    assert not any(found.fix == "--fix" for found in report.findings)
    assert after == diff


@given(written(), st.data())
@settings(max_examples=25, deadline=None)
def test_fix_gives_back_what_git_wrote(diff: bytes, data: st.DataObject) -> None:
    damaged = diff
    kinds = data.draw(st.sets(st.sampled_from(["counts", "newline", "crlf", "bom", "space"]), min_size=1))
    if "counts" in kinds:
        damaged = wrong_counts(damaged, data)
    if (
        "space" in kinds
    ):  # of empty context lines, which editors strip; at the end of a hunk they count for none
        damaged = re.sub(rb"^ $(?=\n[ +-])", b"", damaged, flags=re.M)
    if "newline" in kinds:
        damaged = damaged.rstrip(b"\n") if damaged.endswith(b"\n\n") else damaged.removesuffix(b"\n")
    # A last line that ends with CR alone may have lost its own line feed, or that of the conversion.
    if "crlf" in kinds and not damaged.endswith(b"\r"):
        damaged = damaged.replace(b"\n", b"\r\n")
    if "bom" in kinds:
        damaged = b"\xef\xbb\xbf" + damaged
    report, after = linted(damaged, fix=True)
    expected = diff.rstrip(b"\n") + b"\n" if "newline" in kinds and diff.endswith(b"\n\n") else diff
    assert after == expected
    assert errors(report) == []


def wrong_counts(diff: bytes, data: st.DataObject) -> bytes:
    """The patch with other counts and new starts in some hunks; the last one of a bare patch states too few lines."""
    headers = list(COUNTS.finditer(diff))

    def other(found: re.Match[bytes]) -> bytes:
        old, new = (1 if text is None else int(text) for text in (found[2], found[4]))
        last = found.start() == headers[-1].start() and not diff.startswith(b"From")
        up = 0 if last else 3
        old = max(old + data.draw(st.integers(-3, up)), 0)
        new = max(new + data.draw(st.integers(-3, up)), 0)
        if not old and not new:
            return found[0]
        start = int(found[3]) + data.draw(st.integers(0, 2))
        sides = [
            b"%d" % at if n == 1 else b"%d,%d" % (at, n) for at, n in ((int(found[1]), old), (start, new))
        ]
        return b"@@ -%s +%s @@" % tuple(sides)

    return COUNTS.sub(other, diff)


def test_a_patch_that_is_cut_off_is_not_made_smaller(tmp_path: Path) -> None:
    diff = git_diff(b"1\n2\n3\n4\n5\n6\n7\n", b"1\n2\n3\nX\n5\n6\n7\n")
    cut = b"".join(diff.splitlines(keepends=True)[:-2])
    report, after = linted(cut, fix=True)
    assert after == cut
    assert [found.rule for found in report.findings if found.severity is Severity.ERROR] == ["format"]
    assert "cut off" in errors(report)[0]
    report, after = linted(cut[:-2], fix=True)  # within a line: a newline would hide that it is half a line
    assert after == cut[:-2]
    assert sorted(found.rule for found in report.findings if not found.fixed) == ["final-newline", "format"]


def test_a_hunk_that_was_changed_by_hand(tmp_path: Path) -> None:
    """The common case: a line more in the first hunk; all later hunks of the file move, those of the next do not."""
    lines = [b"line %d\n" % n for n in range(40)]
    other = list(lines)
    other[5], other[30] = b"five\n", b"thirty\n"
    one = git_diff(b"".join(lines), b"".join(other))
    two = git_diff(b"".join(lines), b"".join(other), path="pkg/b.py")
    by_hand = one.replace(b"+five\n", b"+five\n+and a half\n") + two
    report, after = linted(by_hand, fix=True)
    assert [(found.rule, found.fixed) for found in report.findings if found.fix == "--fix"] == [
        ("counts", True)
    ] * 2
    other.insert(6, b"and a half\n")
    expected = git_diff(b"".join(lines), b"".join(other)) + two
    index = re.compile(rb"^index .*\n", re.M)
    assert index.sub(b"", after) == index.sub(b"", expected)


@given(contents(), st.data())
@settings(max_examples=25, deadline=None)
def test_white_space_is_what_git_warns_of(old: bytes, data: st.DataObject) -> None:
    odd = st.sampled_from([b"x ", b"\t", b" \tx", b"\t \tx", b"x\t", b"  x", b"", b" "])
    lines = old.split(b"\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at:at] = data.draw(st.lists(odd, min_size=1, max_size=3))
    new = b"\n".join(lines)
    assume(b"\r" not in old + new and old != new)
    diff = git_diff(old, new)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pkg/a.py"
        file.parent.mkdir()
        file.write_bytes(old)
        if old:
            done = git(
                Path(folder), "-c", "core.whitespace=-blank-at-eof", "apply", "--check", "--whitespace=error-all", "-",
                input=diff,
            )  # fmt: skip
            report, _ = linted(diff)
            found = [
                one
                for one in report.findings
                if one.rule == "white-space" and "at its end" not in one.message
            ]
            assert bool(found) == (done.returncode != 0), done.stderr


def test_line_ends_that_differ_from_the_file() -> None:
    def rules(old: bytes | None, new: bytes) -> list[str]:
        report, _ = linted(git_diff(old, new))
        return [found.rule for found in report.findings if found.rule in ("line-ends", "final-newline")]

    assert rules(b"a\nb\n", b"a\nX\r\nb\n") == ["line-ends"]
    assert rules(b"a\r\nb\r\n", b"a\r\nX\nb\r\n") == ["line-ends"]
    assert rules(b"a\r\nb\r\n", b"a\r\nX\r\nb\r\n") == []
    assert rules(None, b"a\r\n") == ["line-ends"]
    assert rules(b"a\nb\n", b"a\nb") == ["final-newline"]
    assert rules(b"a\nb", b"c\nb") == []


def test_a_bundled_patch_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npu_rl.stack.lint import patch_folder

    folder = tmp_path / "data/patchsets/verl/1"
    folder.mkdir(parents=True)
    (folder / "0001-x.patch").write_bytes(b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y")
    monkeypatch.setattr(patch_folder, "data_root", lambda: tmp_path / "data")
    with pytest.raises(UsageError, match="bundled"):
        lint_patches(Path("verl/1"), fix=True)
    assert lint_patches(folder, fix=True).ok


def test_the_command_fixes_and_keeps_mode_and_link(tmp_path: Path) -> None:
    file = tmp_path / "real.patch"
    file.write_bytes(b"--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-x\n+y\n-- \n2.39.5\n")
    file.chmod(0o640)
    (tmp_path / "x.patch").symlink_to(file)
    done = run_here(["patches", "lint", "x.patch", "--fix"], clean_env(tmp_path), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[counts]" in done.stdout and "\n  fixed\n" in done.stdout and "1 fixed" in done.stdout
    assert b"@@ -1 +1 @@" in file.read_bytes()
    assert (tmp_path / "x.patch").is_symlink() and os.stat(file).st_mode & 0o777 == 0o640


@given(st.binary(max_size=200) | st.lists(st.sampled_from(
    [b"--- a/x", b"+++ b/x", b"@@ -1,2 +1 @@", b"@@ -1 +1,3 @@ f", b"diff --git a/x b/x", b"-x", b"+y", b" z", b"",
     b"-- ", b"\\ No newline at end of file", b"\r"]
), max_size=14).map(b"\n".join))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_repaired_once(data: bytes) -> None:
    """Repair neither fails nor adds or drops a line, and has nothing to repair in its own result."""
    once = Repair(data, "x")
    again = Repair(once.data, "x")
    repaired = [one for one in again.findings if one.fix and one.rule != "format"]
    assert (again.data, repaired) == (once.data, [])
    assert once.data.rstrip(b"\n").count(b"\n") == data.rstrip(b"\n").count(b"\n") or b"\r" in data
