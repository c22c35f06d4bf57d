from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import PatchError
from npu_rl.stack.hunks.hunk_match import split_lines
from npu_rl.stack.hunks.hunk_states import HunkRecord, hunk_state, trace_hunks
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk, Patch
from tests.patches.helpers import PATH, contents, edits, git_apply, plain_diff

BASE = b"".join(b"line %d\n" % n for n in range(1, 31))


def patch(old: bytes | None, new: bytes | None, context: int = 3) -> Patch:
    return parse_patch(plain_diff(old, new, context=context), name="p.patch")


def stack_of(versions: list[bytes | None]) -> list[tuple[str, Patch]]:
    pairs = pairwise(versions)
    return [(f"{n:04}-p.patch", patch(a, b)) for n, (a, b) in enumerate(pairs, 1)]


def records_of(*versions: bytes | None) -> list[HunkRecord]:
    return trace_hunks(stack_of(list(versions)), lambda path: versions[0] if path == PATH else None)


def states(records: list[HunkRecord], current: bytes | None) -> list[tuple[str, int]]:
    return [(found.state, found.line) for found in (hunk_state(record, current) for record in records)]


def edit(content: bytes, *pairs: tuple[str, str]) -> bytes:
    for old, new in pairs:
        assert content.count(f"{old}\n".encode()) == 1, old
        content = content.replace(f"{old}\n".encode(), new.encode())
    return content


ONE = edit(BASE, ("line 10", "ten\nten and a half\n"), ("line 25", ""))
TWO = edit(ONE, ("line 3", "line 3\nadded\n"), ("line 18", "eighteen\n"))


def test_each_hunk_is_recorded_on_its_line_in_the_result() -> None:
    records = records_of(BASE, ONE, TWO)
    assert [(r.patch, r.hunk, r.file, r.line, r.state) for r in records] == [
        ("0001-p.patch", 1, PATH, 11, "in place"),
        ("0001-p.patch", 2, PATH, 27, "in place"),
        ("0002-p.patch", 1, PATH, 4, "in place"),
        ("0002-p.patch", 2, PATH, 20, "in place"),
    ]
    assert records[0].lines == (("-", "line 10\n"), ("+", "ten\n"), ("+", "ten and a half\n"))
    assert records[0].before == ("line 7\n", "line 8\n", "line 9\n")
    assert records[0].after == ("line 11\n", "line 12\n", "line 13\n")
    assert records[1].lines == (("-", "line 25\n"),)
    assert states(records, TWO) == [("in place", r.line) for r in records]


def test_lines_added_above_shift_what_is_below() -> None:
    records = records_of(BASE, ONE, TWO)
    assert states(records, b"a\nb\n" + TWO) == [("shifted", r.line + 2) for r in records]
    below = TWO.replace(b"line 15\n", b"line 15\nmore\n")
    assert [s for s, _ in states(records, below)] == ["in place", "shifted", "in place", "shifted"]


@pytest.mark.parametrize(
    ("old", "new", "hunk", "state"),
    [
        ("ten", "TEN\n", 0, "altered"),
        ("ten and a half", "", 0, "altered"),
        ("added", "Added\n", 2, "altered"),
        ("eighteen", "18\n", 3, "altered"),
        ("ten\nten and a half", "line 10\n", 0, "missing"),
        ("line 24", "line 24\nline 25\n", 1, "missing"),
        ("added", "", 2, "missing"),
        ("eighteen", "line 18\n", 3, "missing"),
    ],
)
def test_a_changed_own_line_is_altered_and_a_hunk_taken_back_missing(
    old: str, new: str, hunk: int, state: str
) -> None:
    records = records_of(BASE, ONE, TWO)
    found = states(records, edit(TWO, (old, new)))
    assert found[hunk] == (state, records[hunk].line)
    assert all(s in ("in place", "shifted") for i, (s, _) in enumerate(found) if i != hunk)


def test_a_deleted_file_misses_all() -> None:
    assert states(records_of(BASE, ONE, TWO), None) == [("missing", 0)] * 4


def test_a_replaced_hunk_is_superseded() -> None:
    three = edit(ONE, ("ten\nten and a half", "10\n"))
    records = records_of(BASE, ONE, three)
    assert [r.state for r in records] == ["superseded", "in place", "in place"]
    assert records[0].lines == ()
    assert states(records, three) == [(r.state, r.line) for r in records]
    assert states(records, b"x\n" + three) == [("superseded", 10), ("shifted", 26), ("shifted", 11)]


def test_a_reverted_patch_is_superseded_and_its_revert_in_place() -> None:
    for back in (ONE, edit(BASE, ("line 25", ""))):
        records = records_of(BASE, back, BASE)
        half = len(records) // 2
        assert [r.state for r in records] == ["superseded"] * half + ["in place"] * half
        assert states(records, BASE) == [(r.state, r.line) for r in records]


def test_a_later_patch_inside_a_hunk_does_not_hide_it() -> None:
    wide = edit(BASE, ("line 10", "ten\n"), ("line 14", "fourteen\n"))
    inner = edit(wide, ("line 12", "twelve\n"))
    records = records_of(BASE, wide, inner)
    assert records[0].lines[2:5] == ((" ", "line 11\n"), (" ", "twelve\n"), (" ", "line 13\n"))
    assert states(records, inner) == [("in place", 10), ("in place", 12)]
    assert states(records, wide) == [("in place", 10), ("missing", 12)]
    assert states(records, edit(BASE, ("line 12", "twelve\n"))) == [("missing", 10), ("in place", 12)]
    assert states(records, edit(inner, ("fourteen", "line 14\n"))) == [("altered", 10), ("in place", 12)]


def test_new_and_deleted_files() -> None:
    records = records_of(None, b"a\nb\n", b"a\nB\n")
    assert [(r.line, r.state) for r in records] == [(1, "in place"), (2, "in place")]
    assert states(records, b"a\nB\n") == [("in place", 1), ("in place", 2)]
    assert states(records, None) == [("missing", 0), ("missing", 0)]
    assert states(records, b"a\nb\n") == [("in place", 1), ("missing", 2)]
    gone = records_of(BASE, ONE, None)
    assert [(r.line, r.state) for r in gone] == [(0, "superseded"), (0, "superseded"), (0, "in place")]
    assert states(gone, None) == [("superseded", 0), ("superseded", 0), ("in place", 0)]
    assert states(gone, ONE) == [("superseded", 0), ("superseded", 0), ("missing", 1)]
    assert states(gone, b"other\n")[2] == ("altered", 1)
    again = records_of(b"a\n", None, b"c\n")
    assert [r.state for r in again] == ["superseded", "in place"]
    assert states(again, b"c\n") == [("superseded", again[0].line), ("in place", 1)]


def test_twins_are_told_apart() -> None:
    twin = b"def f():\n    a = 1\n    b = 2\n    c = 3\n    return x\n\n\n"
    base = twin + b"between\n" + twin
    new = twin + b"between\n" + twin.replace(b"return x", b"return y")
    (record,) = records_of(base, new)
    assert (record.line, hunk_state(record, new)) == (13, ("in place", 13))
    assert hunk_state(record, base) == ("missing", 13)
    for count in (1, 7, 8, 9, 40):
        assert hunk_state(record, b"# top\n" * count + new) == ("shifted", 13 + count)
        assert hunk_state(record, b"# top\n" * count + base)[0] == "missing"
    same = twin.replace(b"return x", b"return y") + b"between\n" + twin
    (record,) = records_of(same, same.replace(b"return x", b"return y"))
    assert hunk_state(record, same) == ("missing", 13)


def test_a_patch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PatchError, match=r"(?s)Hunk 1 does not fit.*0001-p\.patch:3, hunk 1"):
        trace_hunks(stack_of([BASE, ONE]), lambda path: b"top\n" + BASE)
    with pytest.raises(PatchError, match="does not exist"):
        trace_hunks(stack_of([BASE, ONE]), lambda path: None)


def test_records_are_plain_json() -> None:
    old = b"\xff\na\nb\n"
    records = records_of(old, old.replace(b"a", b"\xe9\r"))
    text = json.dumps([r.to_json() for r in records], ensure_ascii=False).encode("utf-8")
    again = [HunkRecord.from_json(data) for data in json.loads(text)]
    assert again == records
    assert states(again, old) == [("missing", 2)]
    with pytest.raises(PatchError, match="damaged"):
        HunkRecord.from_json({"patch": "x"})
    with pytest.raises(PatchError, match="damaged"):
        HunkRecord.from_json({**records[0].to_json(), "lines": [1]})


@st.composite
def histories(draw: st.DrawFn, rich: bool = True, patches: int = 4) -> list[bytes]:
    versions = [draw(contents(rich))]
    for _ in range(draw(st.integers(1, patches))):
        new = draw(edits(versions[-1], rich=rich))
        if new != versions[-1]:
            versions.append(new)
    assume(len(versions) > 1)
    return versions


@pytest.mark.second
@given(histories())
@settings(max_examples=50, deadline=None)
def test_an_unchanged_file_has_every_hunk_where_it_was_recorded(versions: list[bytes]) -> None:
    records = records_of(*versions)
    assert len(records) == sum(len(p.hunks) for _, p in stack_of(list(versions)))
    for record in records:
        again = HunkRecord.from_json(json.loads(json.dumps(record.to_json())))
        assert hunk_state(again, versions[-1]) == (record.state, record.line)
        assert record.state in ("in place", "superseded")


ABOVE = st.integers(1, 30).map(lambda count: b"".join(b"above %d\n" % n for n in range(count)))


@given(histories(), ABOVE)
@settings(max_examples=60, deadline=None)
def test_text_above_shifts_every_hunk(versions: list[bytes], above: bytes) -> None:
    for record in records_of(*versions):
        # Where the record needs the top of the file to tell equal lines apart, text above it hides that.
        if record.state == "in place" and record.before[0] is not None:
            assert hunk_state(record, above + versions[-1]) == ("shifted", record.line + above.count(b"\n"))


def reversed_singly(final: bytes, hunk: Hunk) -> bytes | None:
    """The final text with one hunk taken back, as git does it; None where git can't."""
    body = b""
    for line in hunk.lines:
        body += (
            line.tag.encode()
            + line.text
            + (b"\n" if line.has_newline else b"\n\\ No newline at end of file\n")
        )
    numbers = b"@@ -%d,%d +%d,%d @@\n" % (hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count)
    done, result = git_apply(final, f"--- a/{PATH}\n+++ b/{PATH}\n".encode() + numbers + body, "--reverse")
    return result if done and result is not None else None


def stands_in(content: bytes, lines: list[bytes]) -> bool:
    there = split_lines(content)
    return any(there[i : i + len(lines)] == lines for i in range(len(there) + 1))


@pytest.mark.second
@given(histories(rich=False, patches=3))
@settings(max_examples=30, deadline=None)
def test_oracle_a_hunk_reversed_singly_is_the_one_that_is_missing(versions: list[bytes]) -> None:
    for version in versions:  # among equal lines, which one was taken back can't be told
        lines = version.removesuffix(b"\n").split(b"\n")
        assume(len(lines) == len(set(lines)))
    hunks = [hunk for _, p in stack_of(list(versions)) for hunk in p.hunks]
    records = records_of(*versions)
    checked = 0
    for number, (hunk, record) in enumerate(zip(hunks, records, strict=True)):
        own = [sum(tag == sign for tag, _ in record.lines) for sign in "+-"]
        if own != [sum(line.tag == sign for line in hunk.lines) for sign in "+-"]:
            continue  # superseded, at least in part: git would take back what is another hunk's now
        checked += 1
        text = reversed_singly(versions[-1], hunk)
        if text is None or not stands_in(versions[-1], hunk.new_lines):
            continue  # git takes a last line without newline for the start of any line, and joins the two
        found = states(records, text)
        assert found[number][0] == "missing"
        assert all(s != "missing" for i, (s, _) in enumerate(found) if i != number)
    assert checked  # the last patch is always whole
