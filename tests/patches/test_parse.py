from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import NpuRlError, PatchError
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk
from tests.patches.helpers import PATH, contents, edits, git, git_apply, git_diff, plain_diff

BAD = Path(__file__).parent / "bad"
HUNK = b"@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
PLAIN = b"--- a/pkg/a.py\n+++ b/pkg/a.py\n" + HUNK

REFUSED = {
    "binary-git": r"binary file x\.png.*:4",
    "binary-plain": r"binary file.*:1",
    "bom-utf8": r"UTF-8 byte-order mark.*:1.*Save the patch as UTF-8",
    "colored": r"color codes.*:3.*`git diff --no-color`",
    "combined": r"combined diff.*:1.*against one parent",
    "count-one-side": r"Hunk 1 has a wrong line count.*:5.*3 old and 2 new lines; its body has 3 and 3",
    "count-too-small": r"more lines than its header states.*:9.*' three' is left over",
    "crlf": r"CRLF.*:1.*`eol: lf`",
    "deleted-keeps-lines": r"contradict.*keeps no lines",
    "empty": r"no diff.*:1.*empty",
    "garbage-in-hunk": r"begins with neither a space.*:9",
    "gitattributes": r"changes pkg/\.gitattributes.*:1.*Take the file out",
    "gitmodules": r"changes \.gitmodules.*:1",
    "hunk-at-line-0": r"starts at line 0.*:5, hunk 1",
    "hunk-header-malformed": r"header is malformed.*:5",
    "hunk-only-context": r"changes nothing.*:5, hunk 1",
    "hunk-without-file": r"no file header.*:3",
    "hunks-out-of-order": r"out of order.*:10, hunk 2.*line 22",
    "hunks-overlap": r"overlap.*:10, hunk 2.*line 3",
    "index-malformed": r"`index` line is malformed.*:1",
    "marker-first": r"out of place.*:6",
    "marker-then-hunk": r"follows the end of the file.*:9, hunk 2",
    "mode-half": r"must come together.*:1",
    "mode-odd": r"mode 104755.*:1",
    "names-differ": r"names of a file differ.*:1",
    "new-file-not-null": r"contradicts itself.*:1",
    "new-side-contradicts": r"contradict each other.*:10, hunk 2.*line 10, not 12",
    "no-diff": r"no diff.*:1.*No `diff --git`",
    "nul-byte": r"NUL byte.*:8",
    "path-absolute": r"'/etc/passwd'.*:1.*absolute",
    "path-backslash": r"backslash",
    "path-control": r"control character",
    "path-dotdot": r"`\.\.`, which would leave the tree",
    "path-drive": r"absolute",
    "path-empty-folder": r"empty folder name",
    "path-git": r"reaches into `\.git`",
    "path-git-case": r"reaches into `\.git`",
    "path-git-ignorable": r"reaches into `\.git`",
    "path-newline": r"control character",
    "path-nothing-left": r"Nothing is left.*Set `strip`",
    "path-quote-open": r"quoted file name is malformed.*:1",
    "rename": r"renames a file.*:1.*--no-renames",
    "same-file-twice": r"sections for pkg/a\.py do not fit together.*:10.*line 1",
    "symlink-new": r"symlink, l.*:1.*120000",
    "truncated-after-header": r"no hunk.*:3.*cut off|no hunk.*:1.*cut off",
    "truncated-in-hunk": r"ends within hunk 1.*:5.*3 old and 3 new lines; its body has 2 and 1",
    "truncated-in-line": r"ends in the middle of a line.*:9.*hunk 1",
    "two-mails": r"several commits.*:13.*`\.diff`.*git mailsplit -o\. two-mails\.patch",
}


def parse(data: bytes, **options: object):  # type: ignore[no-untyped-def]
    return parse_patch(data, name="0001-x.patch", **options)  # type: ignore[arg-type]


def test_every_bad_patch_has_an_expectation() -> None:
    assert sorted(p.stem for p in BAD.glob("*.patch")) == sorted(REFUSED)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_bad_patches_are_refused_with_the_line_and_the_reason(name: str) -> None:
    file = BAD / f"{name}.patch"
    with pytest.raises(PatchError) as caught:
        parse_patch(file.read_bytes(), name=file.name)
    message = str(caught.value)
    assert re.search(REFUSED[name], message, re.S), message
    assert f"where: {file.name}:" in message
    assert caught.value.hint


def test_a_git_patch_is_read_in_full() -> None:
    data = (
        b"From 01234567 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] One\n\nWhy: so\n---\n pkg/a.py | 2 +-\n\n"
        b"diff --git a/pkg/a.py b/pkg/a.py\nold mode 100644\nnew mode 100755\nindex 1111111..2222222\n"
        + PLAIN
        + b"@@ -10,2 +10,3 @@ def f():\n ten\n+\xe9\r\n eleven\n\\ No newline at end of file\n"
        + b"diff --git a/new.txt b/new.txt\nnew file mode 100644\nindex 0000000..1111111\n"
        + b"--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+x\n-- \n2.39.5\n\n"
    )
    patch = parse(data)
    assert patch.sha256 == hashlib.sha256(data).hexdigest()
    assert patch.header.startswith("From 0123") and patch.header.endswith("pkg/a.py | 2 +-\n\n")
    changed, new = patch.files
    assert (changed.path, changed.old_path, changed.new_path) == ("pkg/a.py", "pkg/a.py", "pkg/a.py")
    assert changed.line == 8
    assert (new.path, new.old_path, new.new_path) == ("new.txt", None, "new.txt")
    first, second, third = patch.hunks
    assert [h.number for h in patch.hunks] == [1, 2, 3]
    assert [h.line for h in patch.hunks] == [14, 19, 29]
    assert first.lines[1] == ("-", b"two", True)
    assert (second.old_start, second.old_count, second.new_start, second.new_count) == (10, 2, 10, 3)
    assert second.section == "def f():"
    assert second.lines == ((" ", b"ten", True), ("+", b"\xe9\r", True), (" ", b"eleven", False))
    assert third.lines == (("+", b"x", True),)


@pytest.mark.parametrize(
    ("data", "old", "new"),
    [
        (PLAIN, "pkg/a.py", "pkg/a.py"),
        (b"Index: pkg/a.py\n" + b"=" * 67 + b"\n" + PLAIN, "pkg/a.py", "pkg/a.py"),
        (b"diff -ruN a/pkg/a.py b/pkg/a.py\n" + PLAIN, "pkg/a.py", "pkg/a.py"),
        (
            b"--- v1.orig/pkg/a.py\t2025-01-01 00:00:00.0 +0100\n+++ v1/pkg/a.py\t2025-01-01\n" + HUNK,
            "pkg/a.py",
            "pkg/a.py",
        ),
        (
            b"--- a/pkg/a.py\t1970-01-01 01:00:00.0 +0100\n+++ b/pkg/a.py\t2025-01-01\n@@ -0,0 +1 @@\n+x\n",
            None,
            "pkg/a.py",
        ),
        (b"--- a/pkg/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "pkg/a.py", None),
        (
            b"diff --git a/pkg/a.py b/pkg/a.py\nnew file mode 100644\nindex 0000000..e69de29\n",
            None,
            "pkg/a.py",
        ),
        (
            b"diff --git a/pkg/a.py b/pkg/a.py\ndeleted file mode 100644\nindex e69de29..0000000\n-- \n2.4",
            "pkg/a.py",
            None,
        ),
    ],
    ids=["plain", "svn", "gnu-recursive", "timestamps", "gnu-new", "deleted", "empty-new", "empty-deleted"],
)
def test_other_writers_are_understood(data: bytes, old: str | None, new: str | None) -> None:
    (file,) = parse(data).files
    assert (file.path, file.old_path, file.new_path) == ("pkg/a.py", old, new)


def test_an_empty_line_stands_for_empty_context() -> None:
    (hunk,) = parse(PLAIN.replace(b" one", b"")).hunks
    assert hunk.lines[0] == (" ", b"", True)


def test_crlf_inside_hunks_is_content() -> None:
    (hunk,) = parse(PLAIN.replace(b"two\n", b"two\r\n").replace(b"TWO\n", b"TWO\r\n")).hunks
    assert [line.text for line in hunk.lines] == [b"one", b"two\r", b"TWO\r", b"three"]


def test_a_removed_line_may_look_like_a_header() -> None:
    data = b"--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n keep\n"
    (hunk,) = parse(data).hunks
    assert [line.text for line in hunk.lines] == [b"-- old", b"++ new", b"keep"]


@pytest.mark.parametrize(
    "path", ["é/ü.py", "with space.py", "with  two b/spaces.py", 'quo"te.py', "日本.py", " lead", "a/b/c/d"]
)
def test_names_as_git_writes_them(path: str) -> None:
    for old, new in ((b"x\n", b"y\n"), (None, b"y\n"), (b"x\n", None), (None, b"")):
        (file,) = parse(git_diff(old, new, path=path)).files
        assert file.path == path


def test_strip_and_directory() -> None:
    data = b"--- x/y/pkg/a.py\n+++ x/y/pkg/a.py\n" + HUNK
    assert parse(data, strip=2, directory="verl/").files[0].path == "verl/pkg/a.py"
    assert parse(data, strip=0).files[0].old_path == "x/y/pkg/a.py"
    with pytest.raises(PatchError, match="empty folder name"):
        parse(data, directory="../out")
    with pytest.raises(PatchError, match="reaches into"):
        parse(data, directory=".git")
    with pytest.raises(NpuRlError, match="strip is -1"):
        parse(data, strip=-1)


def test_a_wrong_strip_is_told_apart_from_a_rename() -> None:
    with pytest.raises(PatchError, match=r"(?s)strip: 0.*Set `strip`"):
        parse(PLAIN, strip=0)


def test_the_final_marker_needs_no_newline() -> None:
    (hunk,) = parse(b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file").hunks
    assert [line.has_newline for line in hunk.lines] == [True, False]


def test_the_marker_of_a_missing_newline_may_be_in_any_language() -> None:
    """git and GNU diff translate it; `git apply` looks at its first two characters."""
    translated = b"\\ Kein Zeilenumbruch am Dateiende.\n"
    body = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n" + translated + b"+y\n" + translated
    (hunk,) = parse(body).hunks
    assert hunk.old_lines == [b"x"] and hunk.new_lines == [b"y"]
    assert git_apply(b"x", body, path="x") == (True, b"y")


SIGNED = b"-- \n2.39.5\n\n"
BASE = b"\nbase-commit: 8ea5f8cfaf90d008a3077fdf8cde926f4af5ea89\nprerequisite-patch-id: 8ea5f8cfaf90\n"
FOOTER = b"_______________________________________________\ndev mailing list\ndev@lists.example.org\n"


@pytest.mark.parametrize(
    "end",
    [
        SIGNED,
        BASE + SIGNED,
        SIGNED + FOOTER,
        FOOTER,
        SIGNED + b"-- \nYou received this message because you subscribed.\n",
        b"\n---\nbase-commit: 8ea5f8cf\nchange-id: 20261128-x\n\nBest regards,\n-- \nA <a@b>\n",
    ],
    ids=["signature", "base", "footer", "footer-alone", "two-signatures", "b4"],
)
def test_the_end_of_a_mail(end: bytes) -> None:
    """As `git format-patch --base`, b4 and mailing lists write it; a diff there is still refused."""
    old = b"one\ntwo\nthree\n"
    assert len(parse(PLAIN + end).hunks) == 1
    assert git_apply(old, PLAIN + end) == (True, b"one\nTWO\nthree\n")
    for rest in (PLAIN, HUNK, b"+x\n", b"diff --git a/x b/x\n"):
        with pytest.raises(PatchError, match="follows the end"):
            parse(PLAIN + end + rest)


@given(contents(rich=False), st.data(), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_two_sections_for_one_file_are_read_as_git_reads_them(
    old: bytes, data: st.DataObject, context: int
) -> None:
    from npu_rl.stack.hunks.hunk_match import apply_exact

    between = data.draw(edits(old, rich=False))
    new = data.draw(edits(between, rich=False))
    assume(old and between and new and old != between != new != old)
    other = plain_diff(b"x\n", b"y\n", path="pkg/b.py")
    patch = plain_diff(old, between, context=context) + other + plain_diff(between, new, context=context)
    first, second = parse(patch).files
    assert (first.path, second.path) == (PATH, "pkg/b.py")
    assert [hunk.number for hunk in parse(patch).hunks] == list(range(1, len(parse(patch).hunks) + 1))
    assert apply_exact(old, first) == new


@pytest.mark.second
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_what_git_writes_is_read_as_git_reads_it(data: st.DataObject) -> None:
    old = data.draw(st.none() | contents())
    new = data.draw(st.none() | contents()) if old is None else data.draw(st.none() | edits(old))
    assume(old != new)
    diff = git_diff(old, new)
    (file,) = parse(diff).files
    counts = {tag: sum(line.tag == tag for h in file.hunks for line in h.lines) for tag in " -+"}
    stat = git(Path(__file__).parent, "apply", "--numstat", "-z", input=diff)
    added, removed = stat.stdout.split(b"\t")[:2]
    assert (counts["+"], counts["-"]) == (int(added), int(removed))
    assert (file.old_path is None, file.new_path is None) == (old is None, new is None)
    assert (
        rebuilt(file.hunks)
        == [line for line in diff.split(b"\n")[:-1] if line[:1] in (b" ", b"+", b"-", b"\\")][
            2 if file.hunks else 0 :
        ]
    )


def rebuilt(hunks: tuple[Hunk, ...]) -> list[bytes]:
    out: list[bytes] = []
    for line in (line for hunk in hunks for line in hunk.lines):
        out.append(line.tag.encode() + line.text)
        if not line.has_newline:
            out.append(b"\\ No newline at end of file")
    return out


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_damaged_patch_is_refused_or_still_exact(data: st.DataObject) -> None:
    """Whatever is accepted after damage, git accepts too, and with the same result."""
    old = b"".join(b"line %d\n" % n for n in range(12))
    good = b"--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -3,4 +3,4 @@\n line 2\n-line 3\n+LINE\n line 4\n line 5\n"
    at = data.draw(st.integers(0, len(good) - 1))
    gone = data.draw(st.integers(0, 3))
    damaged = good[:at] + data.draw(st.binary(max_size=2)) + good[at + gone :]
    from npu_rl.stack.hunks.hunk_match import apply_exact

    try:
        (file,) = parse(damaged).files
        result = apply_exact(old, file)
    except PatchError:
        return
    if file.path == "pkg/a.py":
        assert git_apply(old, damaged) == (True, result)
