"""`recipes check`, `plan`, `train --dry-run` and `train` tell the same findings of the same recipe."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.judgement.refused_recipe import RefusedRecipe
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.run import prepare as prepare_module
from npu_rl.training.run.prepare import prepare
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import Report, verify
from tests.in_process import run_here
from tests.support import clean_env

pytestmark = pytest.mark.pypi
HAS_TORCH = importlib.util.find_spec("torch") is not None

# words on the command line -> the rule id and the key of the one error they make, by the room that judges them
BROKEN = [
    ("rollout.answer=4", "invalid-recipe", "rollout.answer"),
    ("actor.micro_batch=3", "mini-batch-share", "actor.micro_batch"),
    ("trainer.config=nope", "trainer-config", "trainer.config"),
    ("manifest=deepseek-r1-zero", "workspace-manifest", "manifest"),
    ("overrides.no.such=1", "unknown-key", "overrides['no.such']"),
    ("overrides.data.train_batch_size=many", "invalid-value", "overrides['data.train_batch_size']"),
    ("env.HCCL_BUFFSIZE=300MB", "environment-value", "env.HCCL_BUFFSIZE"),
]
VALID = [
    "data.batch=16",
    "actor.mini_batch=8",
    "algorithm.estimator=rloo",
    "model.make=null",
    "model.path=/nonexist",
]
OTHERS = (["plan"], ["train", "--dry-run"], ["train"])


Told = Callable[..., tuple[list[dict[str, Any]], int]]


@pytest.fixture(scope="module")
def verified(quickstart_workspace: Path) -> Report:
    """The report on the workspace, which nothing here changes: `train` reads every byte of it each time."""
    return verify(WorkspacePaths(quickstart_workspace), print, deep=True)


@pytest.fixture
def told(
    quickstart_workspace: Path, verified: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Told:
    """The findings of a command and its exit code."""
    monkeypatch.setattr(prepare_module, "verify", lambda *_, **__: verified)
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}

    def run(*words: str) -> tuple[list[dict[str, Any]], int]:
        done = run_here([*words, "--workspace", quickstart_workspace, "--json"], env, tmp_path)
        assert done.stdout, (words, done.stderr)
        return json.loads(done.stdout)["findings"], done.returncode

    return run


@pytest.mark.second
@pytest.mark.parametrize(("word", "rule", "key"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_recipe(told: Told, word: str, rule: str, key: str) -> None:
    check, code = told("recipes", "check", "quickstart", word)
    errors = [(found["rule"], found["key"]) for found in check if found["severity"] == "error"]
    assert errors == [(rule, key)], check
    assert code == (2 if rule == "invalid-recipe" else 1), (
        "an argument that no recipe takes is a wrong argument"
    )
    command = OTHERS[[row[0] for row in BROKEN].index(word) % 3]
    assert told(*command, "quickstart", word) == (check, code), command


@pytest.mark.rehearsal
@pytest.mark.skipif(not HAS_TORCH, reason="a dry run needs an interpreter with the packages of `rehearsal`")
def test_a_valid_recipe(told: Told, quickstart_workspace: Path) -> None:
    check, code = told("recipes", "check", "quickstart", *VALID)
    assert [found for found in check if found["severity"] == "error"] == []
    assert code == 0
    assert (
        told("plan", "quickstart", *VALID) == told("train", "--dry-run", "quickstart", *VALID) == (check, 0)
    )
    said: list[str] = []
    loaded = load_recipe("quickstart", VALID)
    prepare(loaded, WorkspacePaths(quickstart_workspace), None, said.append, rehearse=False, dry_run=True)
    assert said[said.index("Not on this machine, so not checked:") + 1] == "  model.path: '/nonexist'"


def test_train_judges_by_this_machine_and_needs_the_address_of_a_head(
    quickstart_workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").touch()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1024000000\n")
    loaded = load_recipe("quickstart", ["device=npu", "cluster.nodes=2"])
    with pytest.raises(RefusedRecipe) as refused:
        prepare(loaded, WorkspacePaths(quickstart_workspace), None, print, rehearse=False, root=tmp_path)
    found = {one.rule: one for one in refused.value.findings}
    memory = found["memory-host"]
    assert memory.severity is Severity.ADVICE and "of 1.0 GB" in memory.message
    assert "cluster.address to HOST:PORT" in found["cluster-address"].fix
    judged = judge(loaded, AssembledTree(quickstart_workspace / "code", "quickstart"))
    assert "cluster-address" not in [one.rule for one in judged.findings]
