"""The patch deepscaler-reward of patchset verl/55e3c5b: upstream's own function, patched and not."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import runtime_root
from tests.patchsets.conftest import Patched
from tests.support import git

RUNNER = Path(__file__).with_name("run_reward.py")
PIN = "55e3c5bc09c85dba09f736eef476f110ad641b75"
REQUEST = "fa52c1d467a6a5b4afe3fb4a43f5c4d85b9324f4"  # the head of volcengine/verl#3054
FOLDER = "verl/utils/reward_score"
FILES = [
    f"{FOLDER}/__init__.py",
    f"{FOLDER}/gsm8k.py",
    f"{FOLDER}/math_dapo.py",
    "verl/utils/import_utils.py",
]
NO_SUCH = "NotImplementedError: Reward function is not implemented for data_source='deepscaler'"

DEEPSCALER = [
    ["deepscaler", r"so \boxed{\frac{1}{2}}", "0.5"],
    ["deepscaler", r"so \boxed{0.5}, no, \boxed{\frac{1}{3}}", "0.5"],
    ["deepscaler", "one of 1, 2, 3, 4, 5, 0.5", "0.5"],
    ["deepscaler", r"\boxed{9^{9^{9^9}}} or 5", "5"],
]
OTHERS = [
    ["openai/gsm8k", "it is #### 42", "42"],
    ["openai/gsm8k", "it is #### 41", "42"],
    ["math_dapo", "Answer: 7", "7"],
    ["aime2024", "Answer: 8", "7"],
    ["no_such_source", "5", "5"],
]


def upstream(upstreams: Path, path: str, commit: str = PIN) -> bytes:
    repository = upstreams / "volcengine+verl" / "repo"
    return (git("cat-file", "blob", f"{commit}:{path}", git_dir=repository) + "\n").encode()


def lay(upstreams: Path, folder: Path, patched: Patched | None) -> Path:
    """Upstream's files and our runtime in a tree."""
    for path in FILES:
        content = upstream(upstreams, path)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(patched("verl/55e3c5b", path, content) if patched else content)
    shutil.copytree(runtime_root(), folder / "npu_rl_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(tree: Path, calls: list[list[str]], **switches: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-B", str(RUNNER), str(tree)],
        input=json.dumps(calls), capture_output=True, text=True, check=False, env={**os.environ, **switches},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.upstreams
def test_answers_are_scored(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    """Upstream knows no such data source; with the patch the last box counts, and nothing besides."""
    before = lay(upstreams, tmp_path / "before", None)
    after = lay(upstreams, tmp_path / "after", patched)
    assert run(before, DEEPSCALER) == [NO_SUCH] * 4
    assert run(after, DEEPSCALER) == [1.0, 0.0, 0.0, 0.0]
    layout = [["deepscaler", r"<think>a</think><answer>\boxed{5}</answer>", "6"]]
    assert run(after, layout, NPU_RL_DEEPSCALER_VARIANT="format") == [0.33]


@pytest.mark.upstreams
def test_algebra_is_reached(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    calls = [["deepscaler", r"\boxed{2\sqrt2}", r"\sqrt{8}"], ["deepscaler", r"\boxed{9^{9^9}}", r"\sqrt{8}"]]
    assert run(lay(upstreams, tmp_path, patched), calls) == [1.0, 0.0]


@pytest.mark.upstreams
def test_the_other_sources_are_as_before(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    before = run(lay(upstreams, tmp_path / "before", None), OTHERS)
    assert [one["score"] if isinstance(one, dict) else one for one in before] == [
        1.0, 0.0, 1.0, -1.0, NO_SUCH.replace("deepscaler", "no_such_source"),
    ]  # fmt: skip
    assert run(lay(upstreams, tmp_path / "after", patched), OTHERS) == before


@pytest.mark.upstreams
def test_switched_off_it_is_upstream(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    after = lay(upstreams, tmp_path, patched)
    assert run(after, DEEPSCALER, NPU_RL_DEEPSCALER_REWARD="0") == [NO_SUCH] * 4
    assert run(after, DEEPSCALER[:1], NPU_RL_DEEPSCALER_REWARD="1") == [1.0]


@pytest.mark.upstreams
def test_the_requests_rule_is_fooled_and_ours_is_not(
    upstreams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of #3054, from its own file: the right answer anywhere is worth as much as the right box."""
    from npu_rl.runtime.deepscaler import compute_score

    grader = types.ModuleType("mathruler.grader")
    grader.__dict__.update(extract_boxed_content=lambda text: "None", grade_answer=lambda given, right: False)
    monkeypatch.setitem(sys.modules, "mathruler", types.ModuleType("mathruler"))
    monkeypatch.setitem(sys.modules, "mathruler.grader", grader)  # it decides nothing below: no box is right
    path = tmp_path / "deepscaler.py"
    path.write_bytes(upstream(upstreams, f"{FOLDER}/deepscaler.py", REQUEST))
    spec = importlib.util.spec_from_file_location("request_3054", path)
    assert spec and spec.loader
    request = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(request)
    for text in ("1 2 3 4 5 6 7 8 9", r"not 5, so \boxed{6}", "15", r"\boxed{4} \boxed{5} \boxed{6}"):
        assert request.compute_score(text, "5") == 1.0
        assert compute_score("deepscaler", text, "5") == 0.0


@pytest.mark.upstreams
def test_its_hook_is_counted(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    after = lay(upstreams, tmp_path / "tree", patched)
    for value, lines in (("1", ["           4 deepscaler-reward"]), ("0", [])):
        usage = tmp_path / f"usage{value}"
        usage.mkdir()
        run(after, DEEPSCALER, NPU_RL_USAGE=str(usage), NPU_RL_DEEPSCALER_REWARD=value)
        assert [line for file in usage.iterdir() for line in file.read_text().splitlines()] == lines
