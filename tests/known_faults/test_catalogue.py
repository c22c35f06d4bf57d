"""The catalogue of known faults: every file is valid, its witness and patches exist, and verdicts follow the texts."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.faults.catalogue_files import CATALOGUE, catalogue_json, read_catalogue, read_fault
from npu_rl.recipes.faults.fault import WITNESSES, known_faults, parse_fault
from npu_rl.recipes.faults.fault_counts import faults_line
from npu_rl.recipes.faults.fault_page import fault_page
from npu_rl.recipes.faults.verdict import (
    ABSENT,
    ENDED,
    OPEN,
    SWITCHED_OFF,
    UNKNOWN,
    count_line,
    judge_files,
    judge_tree,
)
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import parse_header
from tests.in_process import run_here
from tests.support import ROOT, clean_env

ENTRY: dict[str, Any] = {
    "title": "two and two are five", "severity": "wrong result", "symptom": "sums are off", "metrics": "they rise",
    "effect": "1 of 4", "versions": "all", "upstream": "none known",
    "code": [{"file": "sums.py", "text": "def add"}],
    "ended": [
        {"by": "patch sums/1/0001-add", "file": "sums.py", "text": "ours"},
        {"by": "sums 2", "file": "sums.py", "text": "five", "absent": True},
    ],
    "switch": "add", "witness": {"script": "add.py"},
}  # fmt: skip

SHARED = "witness_common.py"


def test_every_file_is_a_fault_with_a_witness() -> None:
    found = known_faults()
    assert len(found) >= 15
    assert [one.id for one in found] == sorted(path.stem for path in CATALOGUE.iterdir())
    scripts = [one.witness.script for one in found]
    assert sorted([*scripts, SHARED]) == sorted(path.name for path in WITNESSES.glob("*.py")), "one per fault"
    for one in found:
        text = one.witness.path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), one.id
        assert "npu_rl.recipes.faults" not in text and "from tests" not in text, one.id


def test_commands_read_the_catalogue_that_people_write() -> None:
    text = (CATALOGUE.parent / "catalogue.json").read_text(encoding="utf-8")
    assert text == catalogue_json(), (
        "write it again: .ci/regenerate npu_rl/recipes/faults/catalogue.json docs/faults.md"
    )
    assert known_faults() == read_catalogue()


def test_every_patch_that_ends_a_fault_is_bundled() -> None:
    for one in known_faults():
        for ending in one.ended:
            if ending.is_patch:
                for name in ending.by.removeprefix("patch ").split(" or "):
                    assert (data_root() / "patchsets" / f"{name}.patch").is_file(), f"{one.id}: {name}"


def test_the_tests_of_a_patch_run_its_witness() -> None:
    """Those that the patch's Verified-By names: one script per fault, in the tests too."""
    for one in known_faults():
        for ending in one.ended:
            for name in ending.by.removeprefix("patch ").split(" or ") if ending.is_patch else ():
                data = (data_root() / "patchsets" / f"{name}.patch").read_bytes()
                tests = parse_header(parse_patch(data, name=name).header).tests
                texts = [(ROOT / test.partition("::")[0]).read_text(encoding="utf-8") for test in tests]
                assert any(one.witness.path.stem in text for text in texts), f"{name}: {one.witness.script}"


@pytest.mark.parametrize(
    ("text", "off", "state", "by"),
    [
        ("def add: five", (), OPEN, ""),
        ("def add: ours five", (), ENDED, "patch sums/1/0001-add"),
        ("def add: ours five", ("add",), SWITCHED_OFF, "patch sums/1/0001-add"),
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


@pytest.mark.parametrize("kind", ["a pipe", "a loop", "17 MB", "a folder"])
def test_a_file_that_cannot_be_read_gives_no_verdict(kind: str, tmp_path: Path) -> None:
    """It was "not in this tree" once, which is exit code 0."""
    cited = tmp_path / "sums.py"
    if kind == "a pipe":
        os.mkfifo(cited)
    elif kind == "a loop":
        cited.symlink_to(cited)
    elif kind == "a folder":
        cited.mkdir()
    else:
        with cited.open("wb") as stream:
            stream.truncate(17 << 20)
    found = judge_tree(tmp_path, [parse_fault("sums-off", ENTRY)])
    assert [(one.state, one.where) for one in found] == [(UNKNOWN, "sums.py")]
    assert count_line(found).endswith("1 not known: files can't be read")


@pytest.mark.parametrize(
    ("strategy", "counts"),
    [
        ("megatron", "1 open (1 with wrong result)"),
        ("fsdp", "0 open, 1 more with actor.strategy megatron (1 with wrong result)"),
        ("", "0 open, 1 more with actor.strategy megatron (1 with wrong result)"),
        (None, "1 open (1 with wrong result)"),
    ],
)
def test_the_line_counts_apart_what_another_strategy_reaches(
    strategy: str | None, counts: str, tmp_path: Path
) -> None:
    fault = parse_fault("sums-off", {**ENTRY, "strategy": "megatron"})
    (tmp_path / "sums.py").write_text("def add: five")
    line = count_line(judge_tree(tmp_path, [fault]), strategy)
    assert line == f"known faults: 1, 1 in this code: 0 patched, {counts}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"severity": "bad"}, "severity: unknown 'bad'"),
        ({"titel": "x"}, "unknown key 'titel'"),
        ({"code": []}, "code: a list is expected"),
        ({"ended": [{"by": "x", "file": "a"}]}, "missing key 'text'"),
        ({"witness": {"script": "../x.py"}}, "is not the name of a script"),
        ({"witness": {"script": "x.py", "standins": ["gpu"]}}, "unknown 'gpu'"),
        ({"effect": ""}, "effect: a text is expected"),
    ],
)
def test_an_invalid_file_is_an_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "sums-off.yaml"
    path.write_text(json.dumps({**ENTRY, **change}))
    with pytest.raises(NpuRlError) as raised:
        read_fault(path)
    assert message in str(raised.value) and str(path) in str(raised.value)


def test_the_page_is_of_the_catalogue() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert page == fault_page(known_faults()), "write it again: .ci/regenerate docs/faults.md"


def test_the_cached_line_follows_an_edit(tmp_path: Path) -> None:
    fault = known_faults()[0]
    for place in fault.code:
        path = tmp_path / place.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{place.text}\n")
    line = faults_line(tmp_path)
    assert ", 1 in this code" in line
    time.sleep(2.1)  # a file that has just changed is not cached
    faults_line(tmp_path)
    assert faults_line(tmp_path) == line
    (tmp_path / fault.code[0].file).write_text("another text")
    assert "0 in this code" in faults_line(tmp_path)


FIRST_LINE = """
import sys, time
from pathlib import Path
import npu_rl.cli.setup, npu_rl.common.errors, dataclasses, hashlib, json, npu_rl.recipes.faults.fault_counts as counts
started = time.process_time()
print(counts.faults_line(Path(sys.argv[1])))
print(1000 * (time.process_time() - started))
print([name for name in ("pydantic", "yaml", "git", "unearth", "rich", "torch") if name in sys.modules])
"""


def test_the_first_line_on_a_tree_is_quick_and_imports_no_yaml(tmp_path: Path) -> None:
    """Imports and all, with every cited file there; the best of six, the first of which writes byte code.

    9 ms of CPU time were measured; parsing YAML took 60 more. The bound leaves room for a slow machine.
    """
    for file in {file for fault in known_faults() for file in fault.files}:
        path = tmp_path / "code" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some = code(of, a, line)\n" * 1000)
    env = clean_env(tmp_path) | {
        "PYTHONPYCACHEPREFIX": str(tmp_path / "byte-code"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    best = float("inf")
    for attempt in range(6):
        home = env | {"XDG_CACHE_HOME": str(tmp_path / f"no-cache-{attempt}")}
        line, took, modules = subprocess.run(
            [sys.executable, "-c", FIRST_LINE, str(tmp_path / "code")],
            env=home, cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        assert line.startswith("known faults: ") and modules == "[]"
        best = min(best, float(took))
        if best < 40:
            break
    assert best < 40


@pytest.mark.pypi
def test_the_command_on_a_workspace(quickstart_workspace: Path, tmp_path: Path) -> None:
    done = run_here(["faults", "-w", quickstart_workspace, "--json"], clean_env(tmp_path), tmp_path)
    found = {one["id"]: one for one in json.loads(done.stdout)["faults"]}
    assert done.returncode == 1, done.stderr
    assert found["hf-rollout-repeats-twice"]["state"] == ENDED
    assert found["attention-scale-ignored"]["state"] == ABSENT
    # The quickstart trains with FSDP, so its recipe is not refused for what only Megatron's workers reach.
    wrong = [
        one["id"] for one in found.values() if one["severity"] == "wrong result" and one["state"] == OPEN
    ]
    known = {fault.id: fault for fault in known_faults()}
    assert {known[one].strategy for one in wrong} == {"megatron"}
    assert all(one in fault_page(()).partition("##")[0] for one in wrong)
    conflict = run_here(["faults", "quickstart", "--run"], clean_env(tmp_path), tmp_path)
    assert conflict.returncode == 2 and "MANIFEST conflicts with --run" in conflict.stderr
