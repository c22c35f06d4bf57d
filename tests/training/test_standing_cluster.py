"""The quickstart on a Ray that was started before, by the script of a dry run, in another shell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.rehearsal.patch_hooks import read_usage
from tests.support import ROOT, byte_code, index_env, run_cli
from tests.training.ray_cluster import RayCluster

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

SLUG = "hf-rollout-repeats-once"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**index_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs"), **byte_code()}


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A shell that has sourced CANN, and nothing else."""
    made = RayCluster({"PYTHONPATH": "/usr/local/Ascend/python/site-packages", **byte_code()})
    try:
        yield made
    finally:
        made.stop()


def variables_of(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in raw if "=" in line)


def test_runs_that_differ_in_an_adaptation_differ_in_what_ran(
    quickstart_workspace: Path, env: dict[str, str], tmp_path: Path, cluster: RayCluster
) -> None:
    """Two runs on one cluster. What is recorded of each is what its workers had and did."""
    recipe = ROOT / "recipes" / "quickstart.yaml"
    words = [f"cluster.address={cluster.address}", "reward.goal=null", "steps=1", "data.rows=64"]
    train = ["train", recipe, "--workspace", quickstart_workspace, *words]
    dry = run_cli([*train, "--dry-run", "name=first"], env, tmp_path)
    assert dry.returncode == 0, dry.stderr
    nobody = run_cli([*train, "name=nobody"], env, tmp_path, timeout=120)
    assert nobody.returncode == 3, nobody.stderr
    assert f"No Ray head answers at {cluster.address}" in nobody.stderr and "Traceback" not in nobody.stderr
    cluster.start([tmp_path / "runs" / "first.dry-run" / "head.sh"])
    for variables in filter(
        None, map(variables_of, cluster.processes())
    ):  # nothing of a run is in the cluster
        assert not variables.keys() & {"NPU_RL_RUN", "NPU_RL_RAY", "NPU_RL_NODES", "NPU_RL_USAGE"}
    cluster.start([tmp_path / "runs" / "first.dry-run" / "run.sh"])
    words = [f"adaptations.{SLUG}=false", "env.ONLY_HERE=on$HOME"]
    done = run_cli([*train, "name=off", *words], env, tmp_path, timeout=300)
    assert done.returncode == 1, "without it verl's HF rollout repeats each prompt twice, and says so"
    assert "Two tensor dict must have identical batch size" in done.stderr
    on, off = (tmp_path / "runs" / name / "attempts" / "1" for name in ("first", "off"))
    assert read_usage(on / "usage")[0] == {SLUG: 1}
    assert read_usage(off / "usage")[0] == {}
    environment = json.loads((off / "environment.json").read_text())
    assert environment["NPU_RL_HF_ROLLOUT_REPEATS_ONCE"] == "0" and environment["ONLY_HERE"] == "on$HOME"
    tree = json.loads((quickstart_workspace / ".npu-rl" / "lock.json").read_text())["tree"]
    for attempt in (on, off):
        (node,) = json.loads((attempt / "nodes.json").read_text())["nodes"]
        assert node["problems"] == [] and node["tree"] == tree
        assert node["pythonpath"].endswith(":/usr/local/Ascend/python/site-packages")
    logs = list((off / "workers").rglob("worker-*"))
    assert logs and {log.parent.name for log in logs} == {node["host"]}
    assert not (off / "workers" / "not-fetched.txt").exists()
    assert list((tmp_path / "runs" / "first" / "tensorboard").rglob("events.out.tfevents.*"))
