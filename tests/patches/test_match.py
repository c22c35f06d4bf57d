from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import PatchError
from npu_rl.stack.hunks.hunk_match import apply_exact, explain, locate, split_lines
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import FilePatch, Hunk
from tests.patches.helpers import contents, edits, git_apply, git_diff, plain_diff

BASE = b"".join(b"line %d\n" % n for n in range(1, 31))


def file_patch(diff: bytes) -> FilePatch:
    (file,) = parse_patch(diff, name="p.patch").files
    return file


def hunk_for(old: bytes, new: bytes, context: int = 3) -> Hunk:
    (hunk,) = file_patch(plain_diff(old, new, context=context)).hunks
    return hunk


CHANGED = BASE.replace(b"line 15\n", b"line fifteen\n")
HUNK = hunk_for(BASE, CHANGED)


def test_exact() -> None:
    found = locate(BASE, HUNK)
    assert (found.kind, found.line, found.offset) == ("exact", 12, 0)
    assert explain(BASE, HUNK, found) == "The hunk fits at line 12."


@pytest.mark.parametrize("added", [1, 7, -4])
def test_offset(added: int) -> None:
    moved = b"new\n" * added + BASE if added > 0 else b"".join(split_lines(BASE)[-added:])
    found = locate(moved, HUNK)
    assert (found.kind, found.line, found.offset) == ("offset", 12 + added, added)
    assert f"{added:+d} lines" in explain(moved, HUNK, found)


def test_white_space() -> None:
    text = BASE.replace(b"line 14\n", b"\tline  14\r\n")
    found = locate(text, HUNK)
    assert (found.kind, found.line) == ("whitespace_only", 12)
    table = explain(text, HUNK, found)
    assert "line·14" in table and "→line··14␍" in table


def test_already_applied() -> None:
    found = locate(CHANGED, HUNK)
    assert (found.kind, found.line) == ("already_applied", 12)
    assert "already there" in explain(CHANGED, HUNK, found)


def test_missing_names_the_nearest_place() -> None:
    text = b"top\n" * 5 + BASE.replace(b"line 15", b"line XV").replace(b"line 17", b"line seventeen")
    found = locate(text, HUNK)
    assert (found.kind, found.line, found.offset) == ("missing", 17, 5)
    assert 0.5 < found.ratio < 1
    table = explain(text, HUNK, found).split("\n")
    assert table[0].startswith("The most similar place is line 17, +5 lines from the stated line 12")
    assert [row for row in table[1:] if row[0] in "-+"] == [
        "-line 15",
        "+line XV",
        "-line 17",
        "+line seventeen",
    ]


def test_without_context_below_only_the_end_fits() -> None:
    hunk = hunk_for(BASE, CHANGED, context=0)
    found = locate(BASE, hunk)
    assert found.kind == "missing"
    assert "no context below" in explain(BASE, hunk, found)
    with pytest.raises(PatchError):
        apply_exact(BASE, file_patch(plain_diff(BASE, CHANGED, context=0)))
    assert git_apply(BASE, plain_diff(BASE, CHANGED, context=0))[0] is False


def test_an_empty_deletion_of_a_file_with_text_is_refused() -> None:
    patch = file_patch(git_diff(b"", None))
    assert apply_exact(b"", patch) is None
    with pytest.raises(PatchError, match="holds more than the patch deletes"):
        apply_exact(b"x\n", patch)


def test_a_last_line_without_newline_is_no_prefix() -> None:
    """`git apply` takes the pre-image "c" for the line "c\\n"; here the bytes must be the same."""
    patch = file_patch(plain_diff(b"a\nb\nc", b"a\nB\nc"))
    with pytest.raises(PatchError):
        apply_exact(b"a\nb\nc\n", patch)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_same_bytes_as_git(data: st.DataObject) -> None:
    old = data.draw(st.none() | contents())
    new = data.draw(contents()) if old is None else data.draw(st.none() | edits(old))
    assume(old != new)
    diff = git_diff(old, new, f"-U{data.draw(st.integers(1, 4))}")
    result = apply_exact(old, file_patch(diff))
    assert result == new
    assert git_apply(old, diff) == (True, new)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_never_more_than_git(data: st.DataObject) -> None:
    """On another text: what fits exactly here, git applies with the same result."""
    old = data.draw(contents())
    new = data.draw(edits(old))
    other = data.draw(edits(old))
    assume(old != new)
    diff = plain_diff(old, new)
    try:
        result = apply_exact(other, file_patch(diff))
    except PatchError as error:
        assert "p.patch" not in str(error) or "hunk" in str(error)
        return
    assert git_apply(other, diff) == (True, result)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_locate_and_explain_agree_with_apply(data: st.DataObject) -> None:
    old = data.draw(contents())
    new = data.draw(edits(old))
    other = data.draw(edits(old) | contents())
    assume(old != new)
    for hunk in file_patch(plain_diff(old, new)).hunks:
        assert locate(old, hunk).kind == "exact"
        found = locate(other, hunk)
        text = explain(other, hunk, found)
        assert text and all(len(row) <= 130 for row in text.split("\n"))
        lines = split_lines(other)
        if found.kind in ("exact", "offset") and found.line is not None:
            assert lines[found.line - 1 : found.line - 1 + hunk.old_count] == hunk.old_lines
            assert found.line == hunk.old_index + 1 + found.offset
