"""The quickstart, for real: verl's trainer through Ray, from the locked tree, to the reward it is for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.metrics import curve, read_metrics, rewards
from tests.support import ROOT, byte_code, index_env, run_cli
from tests.training.processes import left_of, wait_for

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

SECRETS = ["env.WANDB_API_KEY=S3CRET-1", "logging.project=https://me:S3CRET-2@host/x"]
FEW = ["reward.goal=null", "checkpoint.every=2"]
VALIDATIONS = ["logging.validate_every=1", "logging.samples=validation"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return run_env(tmp_path)


def run_env(folder: Path) -> dict[str, str]:
    return {**index_env(folder), "NPU_RL_RUNS": str(folder / "runs"), **byte_code()}


@pytest.fixture
def train(quickstart_workspace: Path, env: dict[str, str], tmp_path: Path) -> Iterator[list[str | Path]]:
    """The first words of the command; afterwards no process of any run may be left."""
    yield train_words(quickstart_workspace)
    for run in (tmp_path / "runs").glob("[a-z]*"):
        assert not any(map(str.isdecimal, left_of(run)))


def train_words(workspace: Path) -> list[str | Path]:
    return ["train", ROOT / "recipes" / "quickstart.yaml", "--workspace", workspace]


def start(words: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
    """The command while it runs: its progress is on stderr."""
    return subprocess.Popen(
        [sys.executable, "-m", "npu_rl", *map(str, words)],
        env=env, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Stopped:
    """A run that Ctrl-C ended: its exit status, its stderr, its record."""

    code: int
    stderr: str
    record: Path


@pytest.fixture(scope="module")
def stopped(quickstart_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Stopped after step 3, and validated after each step."""
    folder = tmp_path_factory.mktemp("stopped")
    words = [*train_words(quickstart_workspace), "name=stopped", *FEW, *VALIDATIONS]
    child = start(words, run_env(folder), folder)
    assert child.stderr is not None
    said = ""
    for line in child.stderr:
        said += line
        if line.startswith("step 3/"):  # the checkpoint of step 2 is written by then
            child.send_signal(signal.SIGINT)
    return Stopped(child.wait(60), said, folder / "runs" / "stopped")


def test_it_reaches_its_goal(train: list[str | Path], env: dict[str, str], tmp_path: Path) -> None:
    done = run_cli([*train, "--json"], env, tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and report["steps"] == 60
    assert report["reward"] > 0.9
    assert report["curve"][0][1] < 0.05
    run = tmp_path / "runs" / "quickstart"
    facts = json.loads((run / "run.json").read_text())
    lock = json.loads((ROOT / "manifests" / "quickstart.lock.json").read_text())
    assert (facts["tree"], facts["commit"]) == (lock["tree"], lock["commit"])
    assert (run / "lock.json").read_bytes() == (ROOT / "manifests" / "quickstart.lock.json").read_bytes()
    attempt = run / "attempts" / "1"
    assert len(read_metrics(attempt / "metrics.jsonl")) == 60
    assert json.loads((attempt / "end.json").read_text())["outcome"] == "done"
    composed = json.loads((attempt / "composed.json").read_text())
    assert composed["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-3
    assert "verl.trainer.main_ppo" in json.loads((attempt / "command.json").read_text())["command"]
    assert list((run / "tensorboard").rglob("events.out.tfevents.*"))
    answers = [json.loads(line) for line in (run / "samples" / "60.jsonl").read_text().splitlines()]
    assert len(answers) == 64 and sum(answer["output"].count("7") > 10 for answer in answers) > 55
    kept = sorted(path.parent.name for path in (run / "checkpoints").glob("global_step_*/actor"))
    assert kept == ["global_step_40", "global_step_60"]
    assert any(path.name.startswith("worker-") for path in (attempt / "workers").iterdir())
    proven = run_cli(["verify", "--deep", "--workspace", train[3]], env, tmp_path)
    assert proven.returncode == 0, "the run changed the workspace it ran from"
    require_exported(run / "checkpoints" / "global_step_60" / "actor", env, tmp_path, lock["digest"])


def require_exported(actor: Path, env: dict[str, str], tmp_path: Path, lock: str) -> None:
    """transformers loads the export, and its values are the checkpoint's, bit for bit."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "exported"
    words = ["weights", "export", "quickstart", out, "--workspace", tmp_path / "none", "--json"]
    done = run_cli([*words, "--python", sys.executable], env, tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["lock"], report["step"], report["audit"]["result"]) == (lock, 60, "equal")
    model, loading = AutoModelForCausalLM.from_pretrained(out, torch_dtype="auto", output_loading_info=True)
    assert not any(loading.values()), loading
    trained = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False)
    held = model.state_dict()
    assert held.keys() == trained.keys()
    for name, tensor in trained.items():
        assert held[name].dtype == tensor.dtype and torch.equal(held[name], tensor.data), name
    assert AutoTokenizer.from_pretrained(out).encode("3 + 4")


def test_samples_of_validations_alone(stopped: Stopped) -> None:
    samples = stopped.record / "samples"
    found = sorted(str(path.relative_to(samples)) for path in samples.rglob("*.jsonl"))
    # Of the two steps before it was asked to stop, and of those it made until it did.
    assert len(found) >= 2 and found == [f"validation/{step}.jsonl" for step in range(1, len(found) + 1)]
    rows = [json.loads(line) for line in (samples / "validation" / "2.jsonl").read_text().splitlines()]
    assert rows and {"input", "output", "score", "step"} <= rows[0].keys()


def test_the_unpatched_tree_fails_and_says_why(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path
) -> None:
    env["NPU_RL_STORE"] = str(quickstart_workspace.parent / "store")  # it has the sdists
    (tmp_path / "plain.yaml").write_text(
        "schema: 1\nname: plain\ntitle: the quickstart without its patch\ndevice: cpu\nextends: quickstart\n"
        "components:\n  verl:\n    patches: []\n"
    )
    made = run_cli(["lock", "--manifest", tmp_path / "plain.yaml"], env, tmp_path, timeout=300)
    assert made.returncode == 0, made.stderr
    ws = tmp_path / "ws"
    laid = run_cli(["setup", "--manifest", tmp_path / "plain.yaml", "--workspace", ws], env, tmp_path)
    assert laid.returncode == 0, laid.stderr
    done = run_cli(
        ["train", "quickstart", f"manifest={tmp_path / 'plain.yaml'}", "--workspace", ws],
        env,
        tmp_path,
        timeout=600,
    )
    assert done.returncode == 1
    assert "Two tensor dict must have identical batch size" in done.stderr
    assert "patch" in done.stderr  # the likely cause


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    train: list[str | Path], env: dict[str, str], tmp_path: Path
) -> None:
    """One seed, one curve: the run that was killed and resumed has the very numbers of the one that was not."""
    whole = run_cli([*train, "steps=4", "name=whole", *FEW, "--json"], env, tmp_path, timeout=600)
    assert whole.returncode == 0, whole.stderr
    run = tmp_path / "runs" / "cut"
    child = start([*train, "steps=4", "name=cut", *FEW, *SECRETS], env, tmp_path)
    assert child.stderr is not None
    for line in child.stderr:  # ends when the child does
        if line.startswith("step 3/"):
            child.kill()  # npu-rl itself, without a word
            break
    child.stderr.close()
    child.wait(60)
    assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    wait_for_its_end(run)
    latest = (run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text()
    # A step's folder is the trainer's, which removes it whole; all the others are npu-rl's.
    mine = [
        path / "thesis.txt"
        for path in (run, *run.rglob("*"))
        if path.is_dir() and "/global_step_" not in f"{path}"
    ]
    for path in mine:
        path.write_text("mine")
    resumed = run_cli([*train, "name=cut", *SECRETS, "--resume", "--json"], env, tmp_path, timeout=600)
    assert resumed.returncode == 0, resumed.stderr
    assert len(mine) > 5 and [path for path in mine if path.read_text() != "mine"] == []
    assert not (run / "attempts" / "1" / "end.json").exists()
    second = read_metrics(run / "attempts" / "2" / "metrics.jsonl")
    assert [point.step for point in second] == list(range(int(latest) + 1, 5))
    assert rewards(curve(run)) == rewards(curve(tmp_path / "runs" / "whole"))
    files = [path for path in (run / "attempts").rglob("*") if path.is_file()]
    assert any(path.parent.name == ".hydra" for path in files)
    assert [path for path in files if b"S3CRET" in path.read_bytes()] == []
    assert left_of(run) == []
    norms = [
        [p.data["actor/grad_norm"] for p in curve(tmp_path / "runs" / name)] for name in ("cut", "whole")
    ]
    assert norms[0] == norms[1]


def wait_for_its_end(run: Path) -> None:
    """What npu-rl started ends with it."""
    wait_for(lambda: not any(map(str.isdecimal, left_of(run))), "the end of the run's processes", 60)


def test_ctrl_c_ends_everything_and_says_how_to_go_on(stopped: Stopped) -> None:
    assert stopped.code == 130, stopped.stderr
    assert "--resume" in stopped.stderr
    end = json.loads((stopped.record / "attempts" / "1" / "end.json").read_text())
    assert (end["outcome"], end["code"]) == ("stopped", stopped.code)
    assert left_of(stopped.record) == []


EXPERT = "model.layers.1.mlp.experts.{}.up_proj.weight"
BROKEN = {
    "zeroed:layers.0.self_attn.o_proj": (
        "sync 1, rank 0: model.layers.0.self_attn.o_proj.weight: zeros, as the trainer sent it; norm "
    ),
    "rounded:e_score_correction_bias": (
        "sync 1, rank 0: model.layers.1.mlp.gate.e_score_correction_bias: rounded, as the trainer sent it; norm "
    ),
    "exchanged:.up_proj": (
        f"sync 1, rank 0: {EXPERT.format(0)}: the values of {EXPERT.format(4)}, as the trainer sent it; norm "
    ),
    "kept:model.norm": (
        "sync 2, rank 0: model.norm.weight: stale: the values of the sync before, as the trainer sent it; norm "
    ),
}


@pytest.mark.parametrize(
    "fault",
    [name if name.startswith("kept") else pytest.param(name, marks=pytest.mark.nightly) for name in BROKEN],
)
def test_a_broken_weight_transfer_is_named(
    fault: str, train: list[str | Path], env: dict[str, str], tmp_path: Path
) -> None:
    """A tensor that gets wrong on the way to the rollout: the trainer goes on happily, the rehearsal does not."""
    done = run_cli(
        [*train, "--rehearse=quick", "--json"], {**env, "NPU_RL_SYNC_FAULT": fault}, tmp_path, timeout=600
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert not report["ok"] and BROKEN[fault] in report["train"]["failure"]


def test_a_healthy_rehearsal_says_what_was_real(
    train: list[str | Path], env: dict[str, str], tmp_path: Path
) -> None:
    done = run_cli([*train, "steps=10", "--rehearse=train", "--json"], env, tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and report["train"]["transfer"] < 6e-5
    (patch,) = report["patches"]
    assert patch["name"] == "0001-hf-rollout-repeats-once"
    assert patch["runs"] >= 12  # seven steps, and five after a resume
    # A sync more in each attempt is with changed weights, to see that no old ones are kept.
    assert report["stood_in_for"]["rollout.weights_filled"] >= 17
    syncs, resumed = report["train"]["weight_syncs"], report["train"]["resumed"]
    assert syncs["tensors"] == 53 and syncs["syncs"] >= 15 and not syncs["unknown"] + syncs["faults"]
    assert (resumed["steps"], resumed["difference"]) == ([6, 7], 0)
    recomputed = report["train"]["recomputed"]
    assert recomputed["comparisons"]["advantages"] >= 12 and not recomputed["differences"]
    assert recomputed["comparisons"]["gradient of log-probabilities"] >= 12
    assert "advantages" not in recomputed["left_out"] and "learning rate" in recomputed["left_out"]
    assert report["stood_in_for"]["verl.Tracking.log: waits to be stopped"] == 1
    assert report["changed_files"] == []
    assert report["stood_in_for"]["verl.utils.device.get_nccl_backend"] >= 1
    assert any("HCCL" in line for line in report["only_an_npu_can_show"])
    assert len(report["train"]["curve"]) == 10
    run = tmp_path / "runs" / "quickstart.rehearsal"
    stopped = read_metrics(run / "attempts" / "1" / "metrics.jsonl")
    assert [point.step for point in stopped] == list(range(1, 8)), "steps after the stop"
    ran = load_recipe(str(run / "attempts" / "1" / "recipe.yaml")).recipe
    assert (ran.name, ran.data.batch, ran.steps) == ("quickstart.rehearsal", 8, 10), (
        "and not the one asked for"
    )
