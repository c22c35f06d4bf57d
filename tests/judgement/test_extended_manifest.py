"""A recipe in a workspace of a manifest that extends its own: its pins, environment and patches are the workspace's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from npu_rl.cli.app import app
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.stack.manifest.manifest_facts import manifest_facts
from npu_rl.training.run.judge_in_workspace import judge_in_workspace
from npu_rl.training.run.prepare import prepare
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import clean_env, index_env, run_cli

SWITCH = "hf-rollout-repeats-once"
MINE = (
    "schema: 1\nname: mine\ntitle: The quickstart without its patch\ndevice: cpu\nextends: quickstart\n"
    "env: {OMP_NUM_THREADS: '3'}\ncomponents: {verl: {patches: []}}\n"
)
Refusals = Callable[..., list[str]]


@pytest.fixture(scope="module")
def mine(quickstart_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    manifest, workspace = folder / "mine.yaml", folder / "ws"
    manifest.write_text(MINE)
    env = index_env(quickstart_workspace.parent)
    for words in (["lock"], ["setup", "--workspace", workspace]):
        done = run_cli([*words, "--manifest", manifest], env, folder, timeout=300)
        assert done.returncode == 0, done.stderr
    return workspace


@pytest.fixture
def refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusals:
    for name, value in {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(workspace: Path, *words: str) -> list[str]:
        done = CliRunner().invoke(app, [*words, "--workspace", str(workspace), "--json"])
        assert done.stdout, (words, done.exception, done.stderr)
        found = json.loads(done.stdout)["findings"]
        return [one["rule"] for one in found if one["severity"] == "error"]

    return run


@pytest.mark.pypi
class TestWorkspace:
    """With a workspace of each manifest, by the commands."""

    @pytest.mark.parametrize("command", [["recipes", "check"], ["plan"]], ids=" ".join)
    def test_it_is_accepted(self, mine: Path, refusals: Refusals, command: list[str]) -> None:
        assert refusals(mine, *command, "quickstart") == []
        assert refusals(mine, *command, "quickstart", "optimizer.lr=fast") == ["invalid-recipe"]

    @pytest.mark.parametrize("command", [["recipes", "check"], ["plan"], ["train"]], ids=" ".join)
    def test_the_other_way_round_is_refused(
        self, mine: Path, quickstart_workspace: Path, refusals: Refusals, command: list[str]
    ) -> None:
        words = (*command, "quickstart", f"manifest={mine.with_name('mine.yaml')}")
        assert refusals(quickstart_workspace, *words) == ["workspace-manifest"]
        assert refusals(mine, *command, "quickstart", "manifest=deepseek-r1-zero") == ["workspace-manifest"]

    def test_what_the_workspace_was_locked_with_counts(self, mine: Path, quickstart_workspace: Path) -> None:
        plans = {}
        for workspace in (mine, quickstart_workspace):
            judgement, _ = judge_in_workspace(workspace, load_recipe("quickstart"), print)
            assert judgement.plan is not None
            plans[workspace] = judgement.plan.facts
        assert plans[mine].env["OMP_NUM_THREADS"] == "3"
        assert "OMP_NUM_THREADS" not in plans[quickstart_workspace].env
        assert SWITCH in plans[quickstart_workspace].switches
        assert not {SWITCH} & {*plans[mine].switches, *plans[mine].off}

    @pytest.mark.rehearsal
    def test_train_takes_it(self, mine: Path) -> None:
        pytest.importorskip("torch")
        prepared = prepare(
            load_recipe("quickstart"), WorkspacePaths(mine), None, print, rehearse=False, dry_run=True
        )
        assert prepared.loaded.stack is not None and prepared.loaded.stack.name == "mine"


PARENT = "schema: 1\nname: {}\ntitle: t\ndevice: cpu\ncomponents: {{}}\nextends: {}\n"


def test_a_manifest_extends_all_of_its_chain(tmp_path: Path) -> None:
    for name, parent in (("old", "quickstart"), ("middle", "./old.yaml"), ("new", "./middle.yaml")):
        (tmp_path / f"{name}.yaml").write_text(PARENT.format(name, parent))
    old, middle, new = (manifest_facts(str(tmp_path / f"{name}.yaml")) for name in ("old", "middle", "new"))
    bundled, other = manifest_facts("quickstart"), manifest_facts("deepseek-r1-zero")
    assert [new.extends(one) for one in (middle, old, bundled, other)] == [True, True, True, False]
    assert [one.extends(new) for one in (middle, old, bundled)] == [False, False, False]
    (tmp_path / "old.yaml").write_text(PARENT.format("old", "quickstart") + "env: {A: b}\n")
    changed = manifest_facts(str(tmp_path / "old.yaml"))
    assert not new.extends(changed), "another text under the same name"
