"""The scripts of a dry run, run as they are on a machine that has sourced CANN and nothing else."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.interpreter import Interpreter
from npu_rl.common.python_roots import INJECTED
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run import tiny_model
from npu_rl.training.run.dry_run import RAISE_FILE_LIMIT
from tests.recipes.test_trainer_command import recipe
from tests.support import clean_env, run_cli
from tests.training.ray_cluster import RayCluster

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

CANN = "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages:/usr/local/Ascend/opp/op_impl"
TWO_NODES = [
    *("device=npu", "cluster.nodes=2", "cluster.dies=16", "data.batch=32", "actor.mini_batch=32"),
    *("actor.micro_batch=8", "env.RAY_memory_usage_threshold=0.9", "env.HCCL_BUFFSIZE=300"),
]
OF_ONE_RUN = (
    "TENSORBOARD_DIR",
    "NPU_RL_USAGE",
    "NPU_RL_RUN",
    "NPU_RL_SEED",
    "NPU_RL_RAY",
    "NPU_RL_NODES",
)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    made = RayCluster({"PYTHONPATH": CANN})
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def scripts(quickstart_workspace: Path, tmp_path: Path, cluster: RayCluster) -> Path:
    """The folder of a dry run for two nodes."""
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    words = [*TWO_NODES, f"cluster.address={cluster.address}", "--workspace", str(quickstart_workspace)]
    done = run_cli(["train", "quickstart", *words, "--dry-run"], env, tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "runs" / "quickstart.dry-run"


def sourced(shell: str, scripts: Path, *, times: int = 1, **env: str) -> dict[str, str]:
    """The environment after a shell with only `env` has sourced environment.sh."""
    words = (
        f'. "{scripts}/environment.sh"; ' * times
        + 'exec "$0" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    )
    done = subprocess.run(
        [shell, "-eu", "-c", words, sys.executable], env=env, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_scripts_run_after_cann_alone(scripts: Path, quickstart_workspace: Path, cluster: RayCluster) -> None:
    ours = f"{INJECTED}:{quickstart_workspace}/code"
    for shell in ("/bin/bash", "/bin/dash"):
        if Path(shell).exists():
            assert sourced(shell, scripts, PYTHONPATH=CANN)["PYTHONPATH"] == f"{ours}:{CANN}"
            assert sourced(shell, scripts)["PYTHONPATH"] == ours
            twice = sourced(shell, scripts, times=2, PYTHONPATH=CANN)
            assert twice["PYTHONPATH"] == f"{ours}:{CANN}"
            assert not twice.keys() & set(OF_ONE_RUN) and twice["HCCL_BUFFSIZE"] == "300"
    cluster.start([scripts / "head.sh"])
    cluster.start([scripts / "worker.sh", "127.0.0.1"])
    look = (
        "import json, os, ray\n"
        "ray.init(address=os.environ['AT'], log_to_driver=False)\n"
        "print(json.dumps([node['Resources'] for node in ray.nodes()]))"
    )
    told = cluster.start([sys.executable, "-c", look], AT=cluster.address)
    nodes = json.loads(told.splitlines()[-1])
    assert [node["NPU"] for node in nodes] == [16, 16]
    raylets = [environment for environment in map(environ, cluster.processes()) if environment]
    assert raylets
    for environment in raylets:
        assert not environment.keys() & {*OF_ONE_RUN, "HCCL_BUFFSIZE"}, (
            "nothing of a recipe or a run in the cluster"
        )
        assert environment["PYTHONPATH"].endswith(CANN)
    assert any(environment.get("RAY_memory_usage_threshold") == "0.9" for environment in raylets)


def environ(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in raw if "=" in line)


def test_the_address_of_a_host_by_name_is_left_to_ray(quickstart_workspace: Path, tmp_path: Path) -> None:
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    words = [*TWO_NODES, "cluster.address=node-0:6380", "--workspace", str(quickstart_workspace)]
    assert run_cli(["train", "quickstart", *words, "--dry-run"], env, tmp_path).returncode == 0
    folder = tmp_path / "runs" / "quickstart.dry-run"
    head, worker = (folder / "head.sh").read_text(), (folder / "worker.sh").read_text()
    assert all("\n".join(RAISE_FILE_LIMIT) in script for script in (head, worker))
    assert "--port=6380" in head and '${1:+--node-ip-address="$1"}' in head
    assert "--address=node-0:6380" in worker
    assert f"exec {sys.executable} -m ray.scripts.scripts start" in worker
    assert "NPU_RL_STANDINS" not in (folder / "environment.sh").read_text()


def test_a_strangers_file_is_not_written_over(quickstart_workspace: Path, tmp_path: Path) -> None:
    mine = tmp_path / "runs" / "quickstart.dry-run" / "recipe.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    done = run_cli(["train", "quickstart", "--workspace", quickstart_workspace, "--dry-run"], env, tmp_path)
    assert done.returncode == 2 and "files of something else" in done.stderr
    assert [path.read_text() for path in mine.parent.iterdir()] == ["mine"]


def test_a_dry_run_has_the_name_that_the_run_would_get(quickstart_workspace: Path, tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "runs", "quickstart", {})
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    done = run_cli(["train", "quickstart", "--workspace", quickstart_workspace, "--dry-run"], env, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs/quickstart-2/checkpoints" in (tmp_path / "runs/quickstart-2.dry-run/run.sh").read_text()


def test_a_cluster_of_gpus(quickstart_workspace: Path, tmp_path: Path) -> None:
    """Ray finds GPUs by itself, and a node may offer fewer than it has."""
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    words = [word for word in TWO_NODES if not word.startswith(("device=", "cluster.dies"))]
    words += ["device=cuda", "cluster.dies=8", "cluster.die_memory_gb=96", "cluster.address=node-0:6380"]
    done = run_cli(
        ["train", "quickstart", *words, "--workspace", str(quickstart_workspace), "--dry-run"], env, tmp_path
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "quickstart.dry-run"
    for name in ("head.sh", "worker.sh"):
        script = (folder / name).read_text()
        assert "--num-gpus=8" in script and "NPU" not in script.replace("NPU_RL", "")
    assert "trainer.device=cuda" in (folder / "run.sh").read_text()


def test_both_make_the_tiny_model_by_one_command() -> None:
    """A dry run's script made one of another kind: it left `model.make` and `data.make` out."""
    other = recipe(model={"make": "tiny-deepseek-v3-sums"}, data={"make": "boxed-sums", "rows": 9})
    command = tiny_model.maker_command(Interpreter("/py", "3.11.0"), other, "/there")
    assert command == ["/py", "-m", "npu_rl_make", "/there", "1", "9", "tiny-deepseek-v3-sums", "boxed-sums"]
    assert os.environ.get("PYTHONPATH", "") != tiny_model.MAKER_ENVIRONMENT["PYTHONPATH"]


@pytest.mark.parametrize(
    ("soft", "hard", "after"), [(256, 512, 512), (256, 65536, 32768), (512, 512, 512), (40000, 65536, 40000)]
)
def test_the_limit_of_open_files_is_raised(soft: int, hard: int, after: int) -> None:
    """What Ray's processes inherit; the hard limit is not theirs to raise, and a higher one stays."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip(f"this process may not have {hard} open files")
    lines = [f"ulimit -Sn {soft}", f"ulimit -Hn {hard}", "set -eu", *RAISE_FILE_LIMIT, "ulimit -Sn"]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(after)
