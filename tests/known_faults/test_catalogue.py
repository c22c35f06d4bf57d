"""The catalogue of known faults: each has a witness and bundled patches, and verdicts follow the texts."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import data_root, witnesses_root
from npu_rl.recipes.faults.fault import CATALOGUE_JSON, SEVERITIES, known_faults, parse_fault
from npu_rl.recipes.faults.verdict import (
    ABSENT,
    ENDED,
    OPEN,
    SWITCHED_OFF,
    UNKNOWN,
    UNPROVEN,
    Patches,
    count_line,
    judge_files,
    judge_tree,
)
from npu_rl.recipes.faults.witness_run import HAS_NONE, run_witness, witness_variables
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import parse_header
from tests.in_process import run_here
from tests.support import clean_env

PATCH = "sums/1/0001-add"
ENTRY: dict[str, Any] = {
    "title": "two and two are five", "severity": "wrong result", "symptom": "sums are off", "metrics": "they rise",
    "effect": "1 of 4", "versions": "all", "upstream": "none known",
    "code": [{"file": "sums.py", "text": "def add"}],
    "ended": [
        {"by": f"patch {PATCH}", "file": "sums.py", "text": "ours"},
        {"by": "sums 2", "file": "sums.py", "text": "five", "absent": True},
    ],
    "switch": "add",
}  # fmt: skip


def test_every_fault_has_a_witness_and_bundled_patches() -> None:
    found = known_faults()
    assert [one.id for one in found] == sorted(
        path.stem for path in (CATALOGUE_JSON.parent / "catalogue").iterdir()
    )
    for one in found:
        assert one.severity in SEVERITIES
        assert one.witness.is_file(), one.id
        for name in (name for ending in one.ended for name in ending.patches):
            data = (data_root() / "patchsets" / f"{name}.patch").read_bytes()
            proofs = parse_header(parse_patch(data, name=name).header).tests
            assert f"patchsets/witnesses/{one.id}.py" in proofs, f"{name}: {one.id}"


def test_every_witness_says_what_it_shows_and_needs_no_npu_rl() -> None:
    for path in witnesses_root().glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), path.name
        assert "npu_rl." not in text.replace("npu_rl.recipes", "") and "from tests" not in text, path.name
        assert witness_variables(path, Path("code"))["PYTHONPATH"].endswith(":code")


@pytest.mark.parametrize(
    ("text", "off", "state", "by"),
    [
        ("def add: five", (), OPEN, ""),
        ("def add: ours five", (), ENDED, f"patch {PATCH}"),
        ("def add: ours five", ("add",), SWITCHED_OFF, f"patch {PATCH}"),
        ("def add: four", ("add",), ENDED, "sums 2"),
        ("def subtract", (), ABSENT, ""),
        (None, (), ABSENT, ""),
    ],
)
def test_the_verdict_follows_the_texts(
    text: str | None, off: tuple[str, ...], state: str, by: str, tmp_path: Path
) -> None:
    fault = parse_fault("sums-off", ENTRY)
    if text is not None:
        (tmp_path / "sums.py").write_text(text)
    (found,) = judge_tree(tmp_path, [fault], off)
    assert (found.state, found.by) == (state, by)
    assert found.is_open_wrong_result == (state in (OPEN, SWITCHED_OFF))
    if not off:
        (of_files,) = judge_files(lambda _: None if text is None else text.encode(), [fault])
        assert of_files == found


OURS, OTHERS = (PATCH, True), ("./mine/0001-undo", False)


@pytest.mark.parametrize(
    ("text", "patches", "state", "after"),
    [
        ("def add: ours", {"sums.py": [OURS]}, ENDED, ""),
        ("def add: ours", {"sums.py": [OTHERS, OURS]}, ENDED, ""),
        ("def add: ours", {"sums.py": [OURS, OTHERS]}, UNPROVEN, OTHERS[0]),
        ("def add: ours", {"sums.py": [OURS, ("sums/1/0002-more", True)]}, ENDED, ""),
        ("def add: ours", {"other.py": [OTHERS], "sums.py": [OURS]}, ENDED, ""),
        ("def add: four", {"sums.py": [OTHERS]}, UNPROVEN, OTHERS[0]),  # upstream's fix is before all patches
        ("def add: five", {"sums.py": [OTHERS]}, OPEN, ""),
    ],
)
def test_a_later_patch_of_others_leaves_a_fix_unproven(
    text: str, patches: Patches, state: str, after: str, tmp_path: Path
) -> None:
    (tmp_path / "sums.py").write_text(text)
    (found,) = judge_tree(tmp_path, [parse_fault("sums-off", ENTRY)], patches=patches)
    assert (found.state, found.after) == (state, after)
    if state == UNPROVEN:
        assert count_line([found]).endswith("0 patched, 0 open, 1 unproven: run the witnesses")


def test_a_file_that_cannot_be_read_gives_no_verdict(tmp_path: Path) -> None:
    """It was "not in this tree" once, which is exit code 0."""
    (tmp_path / "sums.py").mkdir()
    found = judge_tree(tmp_path, [parse_fault("sums-off", ENTRY)])
    assert [(one.state, one.where) for one in found] == [(UNKNOWN, "sums.py")]
    assert count_line(found).endswith("1 not known: files can't be read")


@pytest.mark.parametrize(
    ("strategy", "counts"),
    [
        ("megatron", "1 open (1 with wrong result)"),
        ("fsdp", "0 open, 1 more with actor.strategy megatron (1 with wrong result)"),
    ],
)
def test_the_line_counts_apart_what_another_strategy_reaches(
    strategy: str | None, counts: str, tmp_path: Path
) -> None:
    fault = parse_fault("sums-off", {**ENTRY, "strategy": "megatron"})
    (tmp_path / "sums.py").write_text("def add: five")
    line = count_line(judge_tree(tmp_path, [fault]), strategy)
    assert line == f"known faults: 1, 1 in this code: 0 patched, {counts}"


def test_a_witness_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """It may be installed where its user can't write."""
    script = tmp_path / "witnesses" / "a-fault.py"
    script.parent.mkdir()
    shutil.copy(witnesses_root() / "witness_common.py", script.parent)
    script.write_text("from witness_common import show\nshow(lambda: {'fault': False, 'of': 2})\n")
    found = run_witness(script, tmp_path, sys.executable)
    assert (found.state, found.figures) == (HAS_NONE, {"of": 2})
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "a-fault.py",
        "witness_common.py",
        "witnesses",
    ]


@pytest.mark.pypi
def test_the_command_on_a_workspace(quickstart_workspace: Path, tmp_path: Path) -> None:
    done = run_here(["faults", "-w", quickstart_workspace, "--json"], clean_env(tmp_path), tmp_path)
    found = {one["fault"]["id"]: one for one in json.loads(done.stdout)["verdicts"]}
    assert done.returncode == 1, done.stderr
    assert found["hf-rollout-repeats-twice"]["state"] == ENDED
    assert found["attention-scale-ignored"]["state"] == ABSENT
    # The quickstart trains with FSDP, so its recipe is not refused for what only Megatron's workers reach.
    wrong = [
        name
        for name, one in found.items()
        if one["fault"]["severity"] == "wrong result" and one["state"] == OPEN
    ]
    known = {fault.id: fault for fault in known_faults()}
    assert {known[one].strategy for one in wrong} == {"megatron"}
    conflict = run_here(["faults", "quickstart", "--run"], clean_env(tmp_path), tmp_path)
    assert conflict.returncode == 2 and "MANIFEST conflicts with --run" in conflict.stderr
