"""docs/documents.md: each line of the five documents has a row, and what a row says is there, is there.

The documents themselves are not in the repository: how many lines they have stands below, and a row names its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from npu_rl.common.bundled import bundled_manifests
from tests.support import ROOT

PAGE = ROOT / "docs" / "documents.md"
LINES = {
    "deepseek-v3-cann": 204,
    "deepseek-r1-zero": 96,
    "mindspeed-rl-grpo": 244,
    "pai-megatron-deepseek-v3": 101,
    "verl-npu-plugin": 222,
}
MARKS = ("done", "by hand", "left out", "text")
NOT_OURS = {"DIST_CKPT_PATH", "WORLD_SIZE", "MASTER_ADDR", "CURRENT_IP", "CHATLEARN_ROOT"}


@dataclass(frozen=True)
class Row:
    """A row of a document's table. first, last: lines; None in the table of cann's scripts."""

    section: str
    first: int | None
    last: int | None
    said: str
    here: str


def sections() -> dict[str, str]:
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def rows() -> Iterator[Row]:
    for name, text in sections().items():
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) == 3 and (numbers := re.fullmatch(r"(\d+)(?:–(\d+))?", cells[0])):
                yield Row(name, int(numbers[1]), int(numbers[2] or numbers[1]), cells[1], cells[2])
            elif len(cells) == 2 and cells[1] not in ("here", "---"):
                yield Row(name, None, None, cells[0], cells[1])


ROWS = list(rows())


@pytest.mark.parametrize("name", LINES)
def test_every_line_of_a_document_has_one_row(name: str) -> None:
    expected = 1
    for row in ROWS:
        if row.section == name and row.first is not None and row.last is not None:
            assert row.first == expected <= row.last, f"{name}: {row.said}"
            expected = row.last + 1
    assert expected == LINES[name] + 1


def test_every_row_says_who_does_it() -> None:
    for row in ROWS:
        assert re.match(rf"({'|'.join(MARKS)})\b", row.here), row
        assert row.here.startswith("text") or len(row.here) > len("by hand: x"), row
    assert {re.match("|".join(MARKS), row.here)[0] for row in ROWS} == set(MARKS)  # type: ignore[index]


def test_what_is_by_hand_says_what_you_do() -> None:
    """A row may lead to another row that says it."""
    by_hand = [row for row in ROWS if row.here.startswith("by hand")]
    lines = {(row.section, f"{row.first}–{row.last}") for row in by_hand}
    for row in by_hand:
        assert re.search(r"\b[Yy]ou ", row.here) or "See lines" in row.here, row
        for other in re.findall(r"(?:See lines|and) (\d+–\d+)", row.here):
            assert (row.section, other) in lines


def test_a_stack_is_not_there_as_long_as_its_section_says_so() -> None:
    assert set(sections()) == set(LINES)
    for name, text in sections().items():
        assert ("has no manifest" in text) is (name not in bundled_manifests()), name


# -- what the page names


def test_every_variable_that_is_set_is_known_to_a_manifest_or_recipe() -> None:
    patterns = ("manifests/*.yaml", "recipes/*", "patchsets/*/*/*.patch", "docs/environment.md")
    places = [path for pattern in patterns for path in ROOT.glob(pattern)]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in places)
    for row in ROWS:
        if row.section in bundled_manifests():
            for name in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_?", row.here):
                assert name.rstrip("_") in texts or name in NOT_OURS, f"{row.here}: {name}"
