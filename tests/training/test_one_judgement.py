"""`recipes check`, `plan`, `train --dry-run` and `train` tell the same findings of the same recipe."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npu_rl.cli.app import app
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.judgement.refused_recipe import RefusedRecipe
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.trainer_code import compose_config
from npu_rl.training.run import prepare as prepare_module
from npu_rl.training.run.prepare import prepare
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import Report, verify
from tests.support import clean_env, index_env, rewrites, run_cli

pytestmark = pytest.mark.pypi
HAS_TORCH = importlib.util.find_spec("torch") is not None
ENGINE = "rollout.engine_arguments"
RAW = "overrides.actor_rollout_ref"

# words on the command line -> the rule id and the key of the one error they make
BROKEN = [
    (["rollout.answer=4"], "invalid-recipe", "rollout.answer"),
    (["steps=x"], "invalid-recipe", "steps"),
    (["rollout.responses=0"], "invalid-recipe", "rollout.responses"),
    (["cluster.address=nonsense"], "invalid-recipe", "cluster.address"),
    (["data.batch=4"], "mini-batch-within-batch", "actor.mini_batch"),
    (["actor.mini_batch=9"], "mini-batch-within-batch", "actor.mini_batch"),
    (["actor.parallel.tensor=2"], "key-without-effect", "actor.parallel.tensor"),
    (["actor.parallel.pipeline=2"], "key-without-effect", "actor.parallel.pipeline"),
    (["actor.transformer.num_layers=2"], "key-without-effect", "actor.transformer"),
    (["adaptations.no-such=true"], "unknown-adaptation", "adaptations.no-such"),
    (["adaptations.hf-rollout-repeat-once=true"], "unknown-adaptation", "adaptations.hf-rollout-repeat-once"),
    (["trainer.config=nope"], "trainer-config", "trainer.config"),
    (["trainer.module=verl.trainer.nobody"], "trainer-config", "trainer.module"),
    (["manifest=deepseek-r1-zero"], "workspace-manifest", "manifest"),
    (["overrides.trainer.total_epoch=1"], "unknown-key", "overrides['trainer.total_epoch']"),
    (["overrides.no.such=1"], "unknown-key", "overrides['no.such']"),
    ([f"{RAW}.rollout.no_such=1"], "unknown-key", "overrides['actor_rollout_ref.rollout.no_such']"),
    (["overrides.trainer.resume_mode=auto"], "reserved-key", "overrides['trainer.resume_mode']"),
    (["overrides.trainer.device=npu"], "reserved-key", "overrides['trainer.device']"),
    (["overrides.data.train_batch_size=many"], "invalid-value", "overrides['data.train_batch_size']"),
    (["overrides.algorithm=5"], "invalid-value", "overrides.algorithm"),
    ([f"{RAW}.actor.optim.lr=fast"], "invalid-value", "overrides['actor_rollout_ref.actor.optim.lr']"),
    ([f"{RAW}.actor.use_kl_loss=maybe"], "invalid-value", "overrides['actor_rollout_ref.actor.use_kl_loss']"),
    (["rollout.ignore_end=true"], "benchmark-only", "rollout.ignore_end"),
    (["env.VLLM_ENABLE_FIX_ROUTE=1"], "benchmark-only", "env.VLLM_ENABLE_FIX_ROUTE"),
    (
        [f"{RAW}.actor.ppo_micro_batch_size=8"],
        "micro-batch-twice",
        "overrides['actor_rollout_ref.actor.ppo_micro_batch_size']",
    ),
    (["actor.micro_batch=3"], "mini-batch-share", "actor.micro_batch"),
    (["cluster.nodes=2"], "cpu-one-node", "cluster.nodes"),
    (["env.HCCL_CONNECT_TIMEOUT=soon"], "environment-value", "env.HCCL_CONNECT_TIMEOUT"),
    (["env.HCCL_BUFFSIZE=300MB"], "environment-value", "env.HCCL_BUFFSIZE"),
    (["reward.function=./no_such.py:f"], "reward-function-file", "reward.function"),
]
VALID = [
    [],
    ["steps=3", "name=short"],
    ["optimizer.lr=1e-6"],
    ["data.batch=16", "actor.mini_batch=8"],
    ["rollout.responses=8", "rollout.temperature=0.8"],
    ["checkpoint.every=5"],
    ["logging.validate_every=2"],
    ["overrides.trainer.val_before_train=true"],
    ["algorithm.estimator=rloo"],
    ["actor.kl_loss.use=false"],
    ["env.OMP_NUM_THREADS=2"],
    ["model.make=null", "model.path=/nonexist"],  # of the machine that will run it nobody knows here
    ["cluster.die_memory_gb=96"],
]
# One command for all changes that go together.
ALONE = [[], ["model.make=null", "model.path=/nonexist"]]
TOGETHER = [*ALONE, [word for words in VALID if words not in ALONE for word in words]]
valid = pytest.mark.parametrize("words", TOGETHER, ids=["as it is", "another model", "every other change"])
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
    monkeypatch.setattr(prepare_module, "verify", lambda *_, **__: verified)
    return teller(quickstart_workspace, tmp_path, monkeypatch)


def teller(workspace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The findings of a command, run in this process: a thousand starts of Python would take minutes."""
    for name, value in {**clean_env(folder), "NPU_RL_RUNS": str(folder / "runs")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)

    def run(*words: str) -> tuple[list[dict[str, Any]], int]:
        done = CliRunner().invoke(app, [*words, "--workspace", str(workspace), "--json"])
        assert done.stdout, (words, done.exception, done.stderr)
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return found, done.exit_code

    return run


@pytest.mark.second
@pytest.mark.parametrize(("words", "rule", "key"), BROKEN, ids=[" ".join(row[0]) for row in BROKEN])
def test_a_broken_recipe(told: Told, words: list[str], rule: str, key: str) -> None:
    check, code = told("recipes", "check", "quickstart", *words)
    errors = [(found["rule"], found["key"]) for found in check if found["severity"] == "error"]
    assert errors == [(rule, key)], check
    assert code == (2 if rule == "invalid-recipe" else 1), (
        "an argument that no recipe takes is a wrong argument"
    )
    command = OTHERS[[row[0] for row in BROKEN].index(words) % 3]
    assert told(*command, "quickstart", *words) == (check, code), command


@valid
def test_a_valid_recipe(told: Told, words: list[str]) -> None:
    check, code = told("recipes", "check", "quickstart", *words)
    assert [found for found in check if found["severity"] == "error"] == []
    assert code == 0
    assert told("plan", "quickstart", *words) == (check, 0)


@pytest.mark.rehearsal
@pytest.mark.skipif(not HAS_TORCH, reason="a dry run needs an interpreter with the packages of `rehearsal`")
@valid
def test_a_valid_recipe_in_a_dry_run(told: Told, words: list[str]) -> None:
    check, _ = told("recipes", "check", "quickstart", *words)
    assert told("train", "--dry-run", "quickstart", *words) == (check, 0)


def test_train_judges_by_the_memory_of_this_machine(quickstart_workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").touch()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1024000000\n")
    loaded = load_recipe("quickstart", ["device=npu", "cluster.nodes=2"])  # and no address, which refuses it
    with pytest.raises(RefusedRecipe) as refused:
        prepare(loaded, WorkspacePaths(quickstart_workspace), None, print, rehearse=False, root=tmp_path)
    (found,) = [one for one in refused.value.findings if one.rule == "memory-host"]
    assert found.severity is Severity.ADVICE and "of 1.0 GB" in found.message


def test_several_machines_need_the_address_of_their_head_where_the_run_begins(
    quickstart_workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").touch()
    loaded = load_recipe("quickstart", ["device=npu", "cluster.nodes=2"])
    with pytest.raises(RefusedRecipe) as refused:
        prepare(loaded, WorkspacePaths(quickstart_workspace), None, print, rehearse=False, root=tmp_path)
    (found,) = [one for one in refused.value.findings if one.rule == "cluster-address"]
    assert found.key == "cluster.address" and "cluster.address to HOST:PORT" in found.fix
    judged = judge(loaded, AssembledTree(quickstart_workspace / "code", "quickstart"))
    assert "cluster-address" not in [one.rule for one in judged.findings]


@pytest.mark.rehearsal
@pytest.mark.skipif(not HAS_TORCH, reason="a dry run needs an interpreter with the packages of `rehearsal`")
def test_a_dry_run_lists_the_paths_that_are_not_on_this_machine(quickstart_workspace: Path) -> None:
    loaded = load_recipe("quickstart", ["model.make=null", "model.path=/nonexist"])
    told: list[str] = []
    prepare(loaded, WorkspacePaths(quickstart_workspace), None, told.append, rehearse=False, dry_run=True)
    at = told.index("Not on this machine, so not checked:")
    assert told[at + 1] == "  model.path: '/nonexist'"


@pytest.mark.second
def test_a_rehearsal_counts_what_refuses_it(quickstart_workspace: Path) -> None:
    """A batch share is the recipe's size and a rehearsal's own; an unknown key is both's."""
    loaded = load_recipe("quickstart", ["actor.micro_batch=3", "overrides.no.such=1"])
    with pytest.raises(RefusedRecipe) as refused:
        prepare(loaded, WorkspacePaths(quickstart_workspace), None, print, rehearse=True)
    lines = str(refused.value).splitlines()
    assert "quickstart can't be run as it is: 1 error" in lines[0]
    assert any(
        line.removeprefix("  why:").strip().startswith("not for the rehearsal: error[mini-batch-share] ")
        for line in lines
    )
    assert any("[unknown-key]" in line and "not for" not in line for line in lines)


@pytest.mark.parametrize(
    "command", [["recipes", "check"], ["plan"], ["train", "--dry-run"]], ids=lambda one: one[-1]
)
@pytest.mark.second
def test_a_command_composes_the_configuration_once(
    told: Told, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    calls: list[tuple[object, ...]] = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return answer(*given)

    answer = compose_config.answer
    monkeypatch.setattr(compose_config, "answer", counted)
    found, code = told(*command, "quickstart", "actor.micro_batch=3", "overrides.no.such=1")
    assert ({one["rule"] for one in found}, code) == ({"unknown-key", "mini-batch-share"}, 1)
    assert len(calls) == 1


FLAGSHIP = "deepseek-r1-zero-256die"
OF_FLAGSHIP = {
    "as it is": ([], []),
    "no such model": (["model.path=/nonexist"], []),
    "smaller dies": (["cluster.die_memory_gb=50"], []),
    "too few engines": (["env.VLLM_DP_SIZE=64"], ["rollout-dp-size"]),
    "on a CPU": (["device=cpu"], ["cpu-one-node"]),
    "several": (
        ["rollout.engine=hf", "actor.transformer.recompute_methods=block", "rollout.n_gpu=3"],
        ["invalid-recipe"],
    ),
    "two": (
        ["actor.transformer.recompute_methods=block", "overrides.trainer.nodes=1"],
        ["unknown-key", "unknown-key"],
    ),
}


@pytest.fixture(scope="module")
def flagship_workspace(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flagship")
    env = {**index_env(folder), "NPU_RL_REWRITE": rewrites(upstreams, "deepseek-r1-zero")}
    done = run_cli(
        ["setup", "--manifest", "deepseek-r1-zero", "--workspace", folder / "ws"], env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder / "ws"


@pytest.mark.upstreams
@pytest.mark.parametrize(("words", "rules"), OF_FLAGSHIP.values(), ids=OF_FLAGSHIP)
def test_sixteen_machines(
    flagship_workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    rules: list[str],
) -> None:
    """check, plan and a dry run of the recipe for NPUs, which names no Ray head."""
    told = teller(flagship_workspace, tmp_path, monkeypatch)
    check, code = told("recipes", "check", FLAGSHIP, *words)
    assert [one["rule"] for one in check if one["severity"] == "error"] == rules
    assert code == (2 if rules == ["invalid-recipe"] else 1 if rules else 0)
    assert told("plan", FLAGSHIP, *words) == (check, code)
    if rules or HAS_TORCH:
        assert told("train", "--dry-run", FLAGSHIP, *words) == (check, code)
    if code == 0 and HAS_TORCH:
        script = (tmp_path / "runs" / f"{FLAGSHIP}.dry-run" / "run.sh").read_text()
        assert "needs 16 machines: repeat --dry-run with cluster.address=HOST:PORT" in script
