"""docs/documents.md: each line of the five documents has a row, and what a row says is there, is there.

The documents themselves are not in the repository: how many lines they have stands below, and a row names its lines.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from npu_rl.common.bundled import bundled_manifests, bundled_recipes
from npu_rl.stack.patches.patch_table import patch_rows
from tests.support import ROOT
from tests.test_docs import parse_quoted

PAGE = ROOT / "docs" / "documents.md"
LINES = {
    "deepseek-v3-cann": 204,
    "deepseek-r1-zero": 96,
    "mindspeed-rl-grpo": 244,
    "pai-megatron-deepseek-v3": 101,
    "verl-npu-plugin": 222,
}
MARKS = ("done", "by hand", "left out", "text")
# What rows quote of the documents and of other tools.
QUOTED = {
    "from verl_patches import prelude_patch", "prelude_patch", "verl_atches", "import re", "import verl_npu",
    "git merge",
    "cp -r vllm-ascend", "checkout -b v0.7.3", "checkout -b core_r0.8.0", "--no-check", "deepscaler", "ray start",
    "cd ../Pai-Megatron-Patch", "--moe-router-topk 2", "unsqueese", "hidden_state", "list", "List", "pkill -9 python",
    "ray stop --force", "ulimit -n 32768", "ray status", "README.md", "src/vllm-ascend",
    "enable_gradient_checkpointing",
}  # fmt: skip
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


def test_what_is_by_hand_has_a_command_or_a_reason() -> None:
    """A reason is why no software should do it; a row may lead to another row that has one."""
    by_hand = [row for row in ROWS if row.here.startswith("by hand")]
    assert len(by_hand) == 9
    for row in by_hand:
        assert re.search(r"`(npu-rl|ray) |no software should|has to agree|[Ss]ee lines \d", row.here), row
    lines = {(row.section, f"{row.first}–{row.last}") for row in by_hand}
    for row in by_hand:
        for other in re.findall(r"see lines (\d+–\d+)", row.here):
            assert (row.section, other) in lines


def test_a_stack_is_not_there_as_long_as_its_section_says_so() -> None:
    assert set(sections()) == set(LINES)
    for name, text in sections().items():
        assert ("has no manifest" in text) is (name not in bundled_manifests()), name


# -- what the page names


def quoted() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return sorted(set(re.findall(r"`([^`\n]+)`", text)) - QUOTED)


def known_names() -> set[str]:
    patches = patch_rows(ROOT / "patchsets")
    slugs = {slug for row in patches for slug in row.adaptation}
    files = {row.patch.removesuffix(".patch") for row in patches}
    without_number = {re.sub(r"^\d+-", "", name) for name in files}
    return {*bundled_manifests(), *bundled_recipes(), *slugs, *files, *without_number}


def keys_of(schema: str) -> set[str]:
    """Every key of a JSON Schema, whatever it belongs to."""

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from node.get("properties", {})
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    return set(walk(json.loads((ROOT / schema).read_text(encoding="utf-8"))))


@pytest.mark.second
@pytest.mark.parametrize("text", quoted())
def test_what_is_quoted_is_there(text: str) -> None:
    """A command with its options, manifests and recipes; a file; a name of ours; or a key."""
    if text.startswith("npu-rl "):
        if "NAME" not in text and "RECIPE" not in text:
            command_is_there(text)
    elif text.startswith("--"):
        command_is_there(f"npu-rl train quickstart {text}")
    elif re.match(r"(docs|recipes|manifests|patchsets|tests)/", text):
        assert (ROOT / text).exists()
    elif re.fullmatch(r"\w+(-\w+)+", text):
        assert text in known_names()
    else:
        key = text.partition("=")[0].partition(":")[0]
        known = (
            keys_of("recipes/recipe.schema.json") | keys_of("manifests/manifest.schema.json") | {"LD_PRELOAD"}
        )
        assert set(key.split(".")) <= known | {*MARKS, "lock"}, f"{text}: is it quoted from a document?"


def command_is_there(text: str) -> None:
    parse_quoted(text)
    words = shlex.split(text)[1:]
    if "--manifest" in words:
        assert words[words.index("--manifest") + 1] in bundled_manifests()
    taken = {"train": bundled_recipes, "plan": bundled_recipes, "manifests": bundled_manifests}
    names = [word for word in words[1:] if re.fullmatch(r"\w+(-\w+)+", word)]
    if words[0] in taken:
        assert set(names) <= set(taken[words[0]]()), text


def test_every_variable_that_is_set_is_known_to_a_manifest_or_recipe() -> None:
    patterns = ("manifests/*.yaml", "recipes/*", "patchsets/*/*/*.patch", "docs/environment.md")
    places = [path for pattern in patterns for path in ROOT.glob(pattern)]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in places)
    for row in ROWS:
        if row.section in bundled_manifests():
            for name in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_?", row.here):
                assert name.rstrip("_") in texts or name in NOT_OURS, f"{row.here}: {name}"
