"""A mistake in the locked tree ends a rehearsal by its name, through Ray, and without one nothing is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support import byte_code, index_env, run_cli
from tests.training.own_manifest import Edit, workspace_with_edit

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi, pytest.mark.nightly]

DRIVER = {"rewards of tokens", "positions of log-probabilities", "reference's log-probabilities"} | {
    *("groups", "prompts of responses", "labels of prompts", "response mask", "rewards", "advantages"),
    *("sampled responses", "reference's weights", "reference's weights in the checkpoint"),
}
MISTAKES: dict[str, Edit] = {
    "advantages, step 1, row [0-9]+, token 0: .*: its sign is exchanged": (
        "verl/trainer/ppo/core_algos.py",
        "scores[i] = (scores[i] - id2mean[index[i]]) / (id2std[index[i]] + epsilon)",
        "scores[i] = (id2mean[index[i]] - scores[i]) / (id2std[index[i]] + epsilon)",
    ),
}


@pytest.mark.parametrize("named", MISTAKES)
def test_a_mistake_ends_the_rehearsal(named: str, quickstart_workspace: Path, tmp_path: Path) -> None:
    env = {**index_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs"), **byte_code()}
    env["NPU_RL_STORE"] = str(quickstart_workspace.parent / "store")  # it has the sdists
    code = quickstart_workspace / "code"
    workspace = workspace_with_edit(tmp_path, "quickstart", "verl", code, MISTAKES[named], env)
    words = ["train", "quickstart", f"manifest={tmp_path / 'mistaken.yaml'}", "--workspace", workspace]
    done = run_cli([*words, "--rehearse=quick", "--json"], env, tmp_path, timeout=900)
    assert done.returncode == 1, done.stderr[-3000:]
    part = json.loads(done.stdout)["train"]
    assert "The trainer's step differs from the formulas" in part["failure"]
    (difference,) = part["recomputed"]["differences"]
    assert re.match(named, difference), difference


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_clean_quickstart_names_nothing(seed: int, quickstart_workspace: Path, tmp_path: Path) -> None:
    env = {**index_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs"), **byte_code()}
    words = ["train", "quickstart", "--workspace", quickstart_workspace, "steps=3", f"seed={seed}"]
    done = run_cli([*words, "--rehearse=train", "--json"], env, tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    found = report["train"]["recomputed"]
    assert not found["differences"] and not found["unfired"]
    assert found["comparisons"].keys() >= DRIVER
    assert not any("recompute" in name for name in report["stood_in_for"])
    assert report["stood_in_for"]["verl.logprobs_from_logits: float32"] > 0
