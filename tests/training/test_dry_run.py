"""The scripts of a dry run, run as they are on a machine that has sourced CANN and nothing else."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.dry_run import RAISE_FILE_LIMIT
from tests.support import clean_env, run_cli

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
def scripts(quickstart_workspace: Path, tmp_path: Path) -> Path:
    """The folder of a dry run for two nodes."""
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    words = [*TWO_NODES, "cluster.address=10.0.0.1:6379", "--workspace", str(quickstart_workspace)]
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


def test_the_environment_is_sourced_after_canns_alone_and_as_often_as_one_likes(
    scripts: Path, quickstart_workspace: Path
) -> None:
    ours = f"{INJECTED}:{quickstart_workspace}/code"
    for shell in ("/bin/bash", "/bin/dash"):
        if Path(shell).exists():
            assert sourced(shell, scripts, PYTHONPATH=CANN)["PYTHONPATH"] == f"{ours}:{CANN}"
            assert sourced(shell, scripts)["PYTHONPATH"] == ours
            twice = sourced(shell, scripts, times=2, PYTHONPATH=CANN)
            assert twice["PYTHONPATH"] == f"{ours}:{CANN}"
            assert not twice.keys() & set(OF_ONE_RUN) and twice["HCCL_BUFFSIZE"] == "300"


def test_a_cluster_of_gpus_by_name_under_the_next_free_name(
    quickstart_workspace: Path, tmp_path: Path
) -> None:
    """Ray finds GPUs by itself, and a node may offer fewer than it has."""
    RunRecord.create(tmp_path / "runs", "quickstart", {})
    env = {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}
    words = [word for word in TWO_NODES if not word.startswith(("device=", "cluster.dies"))]
    words += ["device=cuda", "cluster.dies=8", "cluster.die_memory_gb=96", "cluster.address=node-0:6380"]
    words += ["--workspace", str(quickstart_workspace)]
    done = run_cli(["train", "quickstart", *words, "--dry-run"], env, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "quickstart-2.dry-run"
    head, worker = (folder / "head.sh").read_text(), (folder / "worker.sh").read_text()
    for script in (head, worker):
        assert "\n".join(RAISE_FILE_LIMIT) in script and '${1:+--node-ip-address="$1"}' in script
        assert "--num-gpus=8" in script and "NPU" not in script.replace("NPU_RL", "")
    assert "--port=6380" in head and "--address=node-0:6380" in worker
    assert "runs/quickstart-2/checkpoints" in (folder / "run.sh").read_text()


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
