"""The quickstart on a Ray that was started before, by the script of a dry run, in another shell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    done = run_cli([*train, "name=on", "env.ONLY_HERE=on$HOME"], env, tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    done = run_cli([*train, "name=off", f"adaptations.{SLUG}=false"], env, tmp_path, timeout=300)
    assert done.returncode == 1, "without it verl's HF rollout repeats each prompt twice, and says so"
    assert "Two tensor dict must have identical batch size" in done.stderr
    on, off = (tmp_path / "runs" / name / "attempts" / "1" for name in ("on", "off"))
    assert read_usage(on / "usage")[0] == {SLUG: 1}
    assert read_usage(off / "usage")[0] == {}
    assert switch(on) is None and switch(off) == "0"
    assert environment(on)["ONLY_HERE"] == "on$HOME" and "ONLY_HERE" not in environment(off)
    for attempt in (on, off):
        (node,) = json.loads((attempt / "nodes.json").read_text())["nodes"]
        assert node["problems"] == [] and node["tree"] == tree(quickstart_workspace)
        assert node["pythonpath"].endswith(":/usr/local/Ascend/python/site-packages")
        logs = list((attempt / "workers").rglob("worker-*"))
        assert logs and {log.parent.name for log in logs} == {node["host"]}
        assert not (attempt / "workers" / "not-fetched.txt").exists()
        other = off if attempt is on else on
        assert not {log.name for log in logs} & {log.name for log in (other / "workers").rglob("worker-*")}
    assert list((tmp_path / "runs" / "on" / "tensorboard").rglob("events.out.tfevents.*"))
    cluster.start([tmp_path / "runs" / "first.dry-run" / "run.sh"])
    assert read_usage(tmp_path / "runs" / "first" / "attempts" / "1" / "usage")[0] == {SLUG: 1}


def environment(attempt: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((attempt / "environment.json").read_text())
    return found


def switch(attempt: Path) -> str | None:
    return environment(attempt).get("NPU_RL_HF_ROLLOUT_REPEATS_ONCE")


def tree(workspace: Path) -> str:
    lock = json.loads((workspace / ".npu-rl" / "lock.json").read_text())
    return str(lock["tree"])
