"""docs/summary.md about the sample of verl_npu's own summary: each line judged as the code is, and none left out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.lock import lock_model
from tests.support import ROOT, clean_env, ok, rewrites, run_cli, run_program

MANIFEST = "verl-npu-plugin"
# Lines 84 to 152 of verl_npu/README.MD at v2.3.0 that are not empty; the file itself is not here.
SAMPLE = set(range(84, 153)) - {85, 87, 97, 103, 105, 111, 114, 116, 118, 128, 141, 149, 151}
# What the sample calls a kind, and what it may be.
KINDS = {"module_attr": {"import", "module attribute"}, "method": {"method", "function"}, "class": {"class"}}


@dataclass(frozen=True)
class Change:
    """A change as `summary` says it, with the patch of the plugin that makes it: the stem of the file's name."""

    patch: str
    change: str
    kind: str
    name: str


@dataclass(frozen=True)
class Row:
    """A row of the page. claim: (change, kind, name) of the sample; None for a heading, a file or a class around."""

    lines: tuple[int, ...]
    claim: tuple[str, str, str] | None
    verdict: str
    found: Change | None
    hunk: str


_CHANGE = r"`(added|removed|replaced) (module attribute|class attribute|\w+) ([^`]+)`"
_HUNK = r"(\w+)\.patch `(@@ [^`]+ @@)`"


def rows() -> list[Row]:
    found = []
    for line in section("## The summary of verl_npu"):
        numbers, sample, verdict, said, hunk = (cell.strip() for cell in line.split("|")[1:-1])
        first, *last = (int(one) for one in re.split(r"–|, ", numbers))
        lines = (first, *last) if "," in numbers else tuple(range(first, (last or [first])[0] + 1))
        at, change = re.fullmatch(_HUNK, hunk), re.match(_CHANGE, said)
        here = Change(at[1], *change.groups()) if at and change else None
        found.append(Row(lines, claim(sample) if at else None, verdict, here, at[2] if at else ""))
    return found


def claim(sample: str) -> tuple[str, str, str]:
    if whole := re.fullmatch(r"`Patch class (\w+)`", sample):
        return "added", "class", whole[1]
    told = re.fullmatch(r"`(added|replaced) (\w+) (\w+)`", sample)
    assert told, sample
    return told[1], told[2], told[3]


def left_out() -> list[tuple[Change, str]]:
    found = []
    for line in section("## What the sample leaves out"):
        change, hunk = (cell.strip() for cell in line.split("|")[1:-1])
        at, what = re.fullmatch(_HUNK, hunk), re.fullmatch(_CHANGE, change)
        assert at and what, line
        found.append((Change(at[1], what[1], what[2], what[3]), at[2]))
    return found


def section(heading: str) -> list[str]:
    """The rows of the table below a heading."""
    text = (ROOT / "docs" / "summary.md").read_text(encoding="utf-8")
    table = text.partition(heading)[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("|")][2:]


def test_each_line_of_the_sample_has_a_row() -> None:
    lines = [line for row in rows() for line in row.lines]
    assert len(lines) == len(set(lines)) and set(lines) == SAMPLE


def test_a_line_is_confirmed_where_change_kind_and_name_agree() -> None:
    claims = [row for row in rows() if row.claim and row.found]
    for row in claims:
        assert row.claim and row.found
        change, kind, name = row.claim
        agrees = (change, name) == (row.found.change, row.found.name.rpartition(".")[2])
        agrees = agrees and row.found.kind in KINDS[kind]
        agrees = (
            agrees and row.found.patch != "modeling_flash_attention_utils"
        )  # the sample names another file
        assert row.verdict.partition(",")[0] == ("confirmed" if agrees else "contradicted"), row
        assert ("as an import" in row.verdict) is (row.found.kind == "import")
    page = (ROOT / "docs" / "summary.md").read_text(encoding="utf-8")
    confirmed = sum(row.verdict.startswith("confirmed") for row in claims)
    assert f"Of the {len(claims)} changes in the sample {confirmed} are confirmed" in page
    assert f"and {len(claims) - confirmed} contradicted" in page


@pytest.mark.upstreams
def test_the_tables_are_what_summary_says(upstreams: Path, tmp_path: Path) -> None:
    """Every change of the plugin's patches stands in one of the tables, or in both, and no other does."""
    env = {**clean_env(tmp_path), "NPU_RL_REWRITE": rewrites(upstreams, MANIFEST)}
    done = ok(run_cli(["summary", "--manifest", MANIFEST, "--json"], env, tmp_path, timeout=300))
    lock = lock_model.read(lock_model.lock_path(bundled_manifests()[MANIFEST]))
    theirs = {one.name for _, one in lock.patches() if one.file.startswith("MindSpeed-RL:") or one.replaces}
    real = {
        Change(Path(file["path"]).stem, change["change"], change["kind"], change["name"])
        for step in json.loads(done.stdout)["steps"]
        if step["name"] in theirs
        for file in step["files"]
        for change in file["definitions"] or ()
    }
    told = {row.found for row in rows() if row.found}
    more = {change for change, _ in left_out()}
    assert told | more == real
    assert {change.name for change in told & more} == {"_prepare_from_posids"}


@pytest.mark.upstreams
def test_each_hunk_is_one_of_the_plugin(upstreams: Path) -> None:
    repository = upstreams / "Ascend+MindSpeed-RL" / "repo"

    def git(*words: str) -> str:
        command = ["git", f"--git-dir={repository}", *words]
        return ok(run_program(command)).stdout

    files = git("ls-tree", "-r", "--name-only", "v2.3.0", "verl_npu/verl_npu/patch").splitlines()
    texts = {Path(file).stem: git("show", f"v2.3.0:{file}") for file in files if file.endswith(".patch")}
    hunks = [(row.found.patch, row.hunk, row.found.name) for row in rows() if row.found]
    for patch, hunk, name in [*hunks, *((one.patch, hunk, one.name) for one, hunk in left_out())]:
        (body,) = re.findall(rf"^{re.escape(hunk)}(.*?)(?=^@@ |\Z)", texts[patch], re.M | re.S)
        assert body, f"{patch} {hunk} {name}"
