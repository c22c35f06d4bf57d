"""Properties of a port: to the same version it is the identity, and it changes nothing but the patch's own lines."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from npu_rl.stack.hunks.hunk_match import apply_exact
from npu_rl.stack.port.merge_change import AROUND
from npu_rl.stack.port.port_judgement import PortedPatch
from tests.port.judging import judged, made_patch

LINES = st.lists(
    st.sampled_from(["alpha = 1", "beta = 2", "gamma_value = 3", "", "return", "call(alpha)", "call(beta)"]),
    min_size=1,
    max_size=14,
)
UNLIKE = st.integers(1, 14).map(lambda count: [f"line_number = {number}" for number in range(count)])
"""Lines of which no two are equal: among equal ones two diffs of one change differ."""
NAMES = ("m.py", "m.txt")


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


EDITS = st.tuples(
    st.integers(0, 20), st.sampled_from(["+", "-", "="]), st.sampled_from(["new_line = 4", "alpha = 1"])
)
NEW_LINES = st.tuples(st.integers(0, 20), st.sampled_from(["+", "-", "="]), st.just("mine = 1"))
OTHERS = st.tuples(st.integers(0, 20), st.sampled_from(["+", "-", "="]), st.just("theirs = 1"))


def edited(lines: list[str], edits: list[tuple[int, str, str]]) -> list[str]:
    result = list(lines)
    for at, kind, line in edits:
        place = at % (len(result) + 1)
        if kind == "+":
            result.insert(place, line)
        elif place < len(result):
            result[place : place + 1] = [] if kind == "-" else [line]
    return result


def is_carried(ported: PortedPatch) -> bool:
    """Whether each hunk has one place: not an addition beside another one, or beside a line that is gone."""
    return all(h.state in ("exact", "moved") or (h.state, h.why) == ("merged", AROUND) for h in ported.hunks)


@given(LINES, st.lists(EDITS, min_size=1, max_size=3), st.sampled_from(NAMES))
def test_the_same_version_is_the_identity(
    lines: list[str], edits: list[tuple[int, str, str]], path: str
) -> None:
    old, patched = text(lines), text(edited(lines, edits))
    if old == patched or not patched:
        return
    ported = judged(old, patched, old, path)
    assert {hunk.state for hunk in ported.hunks} == {"exact"}
    assert ported.files[0].after == patched.encode()


@given(LINES, st.lists(EDITS, min_size=1, max_size=2), st.lists(EDITS, min_size=1, max_size=4))
def test_a_clean_port_changes_the_patchs_own_lines_only(
    lines: list[str], edits: list[tuple[int, str, str]], upstream: list[tuple[int, str, str]]
) -> None:
    old, patched, new = text(lines), text(edited(lines, edits)), text(edited(lines, upstream))
    if old == patched or not patched or not new:
        return
    ported = judged(old, patched, new, "m.txt")
    if not ported.is_clean:
        return
    (file,) = made_patch(old, patched, "m.txt").files
    own: Counter[bytes] = Counter()
    for hunk, found in zip(file.hunks, ported.hunks, strict=True):
        for change in hunk.changes():
            if found.state != "already upstream":
                own.update(change.added)
                own.subtract(change.removed)
    expected = Counter(new.encode().splitlines(keepends=True))
    expected.update(own)
    after = Counter((ported.files[0].after or b"").splitlines(keepends=True))
    assert +after == +expected


@given(UNLIKE, st.lists(NEW_LINES, min_size=1, max_size=2), st.lists(OTHERS, min_size=1, max_size=4))
def test_there_and_back_where_nothing_conflicted(
    lines: list[str], edits: list[tuple[int, str, str]], upstream: list[tuple[int, str, str]]
) -> None:
    old, patched, new = text(lines), text(edited(lines, edits)), text(edited(lines, upstream))
    if old == patched or not patched or not new:
        return
    there = judged(old, patched, new, "m.txt")
    after = (there.files[0].after or b"").decode()
    if not is_carried(there) or after == new:
        return
    back = judged(new, after, old, "m.txt")
    if is_carried(back):
        assert back.files[0].after == patched.encode()


@given(LINES, st.lists(EDITS, min_size=1, max_size=2), LINES)
def test_a_conflict_loses_no_line_of_the_new_version(
    lines: list[str], edits: list[tuple[int, str, str]], other: list[str]
) -> None:
    old, patched, new = text(lines), text(edited(lines, edits)), text(other)
    if old == patched or not patched:
        return
    ported = judged(old, patched, new, "m.txt")
    if {hunk.state for hunk in ported.hunks} != {"conflict"}:
        return
    after = (ported.files[0].after or b"").decode().splitlines()
    kept, is_theirs = [], False
    for line in after:
        if line.startswith("======="):
            is_theirs = True
        elif line.startswith(">>>>>>> "):
            is_theirs = False
        elif not is_theirs and not line.startswith("<<<<<<< "):
            kept.append(line)
    assert kept == other


@given(LINES, st.lists(EDITS, min_size=1, max_size=3))
def test_the_diff_of_a_test_is_a_patch(lines: list[str], edits: list[tuple[int, str, str]]) -> None:
    """What the other tests rest on."""
    old, patched = text(lines), text(edited(lines, edits))
    if old != patched and patched:
        (file,) = made_patch(old, patched).files
        assert apply_exact(old.encode(), file) == patched.encode()
