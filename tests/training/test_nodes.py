"""What the processes of a run get on the nodes of a Ray that was there before, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.hang_alarm import report_of
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.lost_nodes import lost_nodes
from npu_rl.training.run.node_reports import fetch_worker_logs
from npu_rl.training.run.ray_start import ray_needs
from tests.training.processes import new_id, wait_for
from tests.training.ray_cluster import RayCluster

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.skipif(sys.platform != "linux", reason="a cluster's processes are found through /proc"),
]

# A trainer that says what its workers have, and an actor with a runtime_env of its own, as verl's have.
TRAINER = """
import json, os, sys
import ray

@ray.remote(num_cpus=1)
class Worker:
    def have(self):
        print("a worker of run", os.environ.get("NAMED"))
        return dict(os.environ), sys.path

class Runner:
    def have(self):
        inner = Worker.options(runtime_env={"env_vars": {"WORLD_SIZE": "2"}}).remote()
        return ray.get(inner.have.remote())

outer = ray.remote(num_cpus=1)(Runner).remote()
environ, path = ray.get(outer.have.remote())
json.dump({"environ": environ, "path": path}, open("seen.json", "w"))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes: one whose shell has sourced CANN and another recipe's environment, and one with nothing."""
    made = RayCluster({})
    try:
        made.head(PYTHONPATH="/cann/python/site-packages", NPU_RL_ATTENTION_SCALE="0", HCCL_BUFFSIZE="200")
        made.worker()
        yield made
    finally:
        made.stop()
    assert made.processes() == []


class Run:
    """A record's folder, the code of a workspace, and a driver that trains with it."""

    def __init__(self, folder: Path, cluster: RayCluster) -> None:
        self.record, self.code = folder / "attempt", folder / "code"
        (self.record / "workers").mkdir(parents=True)
        (self.code / "package").mkdir(parents=True)
        (self.code / "package" / "module.py").write_text("NAME = 'module'\n")
        (self.code / "a_trainer.py").write_text(TRAINER)
        self.address = cluster.address

    def told(self, **changes: Any) -> dict[str, Any]:
        paths = [str(INJECTED), str(self.code)]
        said = {
            "paths": paths,
            "variables": [],
            "by_hook": [],
            "code": paths[1],
            "packages": ["ray"],
            "record": str(self.record),
        }
        return {**said, **changes}

    def drive(
        self,
        told: dict[str, Any] | None = None,
        words: Sequence[str] = ("-m", "npu_rl_driver", "a_trainer"),
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        own = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": os.pathsep.join([str(INJECTED), str(self.code)]),
            "NPU_RL_RAY": json.dumps({"address": self.address}),
            "NPU_RL_NODES": json.dumps(told or self.told(variables=list(env))),
            **env,
        }
        return subprocess.run(
            [sys.executable, *words],
            env=own, cwd=self.record, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    @property
    def nodes(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.record / "nodes.json").read_text())
        return found

    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.record / "seen.json").read_text())
        return found


@pytest.fixture
def run(tmp_path: Path, cluster: RayCluster) -> Run:
    return Run(tmp_path, cluster)


def test_workers_get_what_the_run_sets_whatever_it_looks_like(run: Run, cluster: RayCluster) -> None:
    odd = {
        "NAMED": "this run",
        "DOLLARS": "a$HOME ${PATH} $ ${NOT_THERE} $$",
        "EMPTY": "",
        "LINES": "one\ntwo = 'three' \"four\" \\",
        "UNICODE": "größer",
        "NPU_RL_ROLLOUT_OFFLOAD": "0",
        "A_TOKEN": f"{'hidden'}-$HOME-token",
    }
    done = run.drive(run.told(variables=list(odd), by_hook=["A_TOKEN"]), **odd)
    assert done.returncode == 0, done.stderr
    environ = run.seen()["environ"]
    assert {name: environ.get(name) for name in odd} == odd
    assert environ["WORLD_SIZE"] == "2"  # an actor's own come on top
    assert "NPU_RL_ATTENTION_SCALE" not in environ  # of the shell that started Ray, not of this run
    assert not {"NPU_RL_RAY", "NPU_RL_NODES", "NPU_RL_VARIABLES", "NPU_RL_QUOTED"} & environ.keys()
    logs = [path for path in cluster.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(b"three" in path.read_bytes() for path in logs), "Ray logs what goes by env_vars"
    assert not [path for path in logs if b"hidden-" in path.read_bytes()]


def test_the_record_says_what_each_node_had(run: Run) -> None:
    done = run.drive(NAMED="this run")
    assert done.returncode == 0, done.stderr
    nodes = run.nodes["nodes"]
    assert len(nodes) == 2 and len({node["node"] for node in nodes}) == 2
    assert [node["problems"] for node in nodes] == [[], []]
    ours = os.pathsep.join([str(INJECTED), str(run.code)])
    # `on:code:${PYTHONPATH}` ends in an empty entry, the working folder, where a node has none: it is taken away
    assert sorted(node["pythonpath"] for node in nodes) == [ours, f"{ours}:/cann/python/site-packages"]
    assert sorted(node["environment"].get("HCCL_BUFFSIZE", "") for node in nodes) == ["", "200"]
    assert {(node["prefix"], node["packages"]["ray"]) for node in nodes} == {(sys.prefix, "2.42.1")}


def test_logs_come_back_from_the_nodes_and_only_this_jobs(
    run: Run, tmp_path: Path, cluster: RayCluster
) -> None:
    """Whatever became of the driver, since another process fetches them."""
    assert run.drive(NAMED="first").returncode == 0
    other = Run(tmp_path / "other", cluster)
    (other.code / "a_trainer.py").write_text(TRAINER.replace("json.dump(", "os.kill(os.getpid(), 9)  # "))
    assert other.drive(NAMED="second").returncode == -9
    for attempt, name in ((run, "first"), (other, "second")):
        environment = {**os.environ, "NPU_RL_RAY": json.dumps({"address": cluster.address})}
        fetch_worker_logs(Attempt(attempt.record, 1), sys.executable, environment)
        found = [path for path in (attempt.record / "workers").rglob("*") if path.is_file()]
        assert {path.parent.name for path in found} == {os.uname().nodename}
        said = "".join(path.read_text() for path in found)
        assert f"a worker of run {name}" in said and said.count("a worker of") == 1


def test_a_ray_that_lacks_what_the_recipe_needs_is_refused_before_the_trainer_starts(run: Run) -> None:
    words = ["device=npu", "cluster.nodes=2", "cluster.dies=16", f"cluster.address={run.address}"]
    needs = ray_needs(load_recipe("quickstart", words).recipe)
    done = run.drive(run.told(needs=needs))
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"The Ray at {run.address} lacks what quickstart needs" in done.stderr
    assert "0 of 2 nodes offer 16 NPU" in done.stderr and ": 1 NPU" in done.stderr
    assert "head.sh or worker.sh" in run.nodes["refused"]["hint"]
    assert not (run.record / "seen.json").exists()
    enough = run.drive(run.told(needs={**(needs or {}), "count": 1, "cpus": 8}))
    assert enough.returncode == 0, enough.stderr


# A trainer with a rank that waits, as an actor's of verl.
WAITS = """
import os, ray, time

class Rank:
    def deep(self):
        open("ready", "w").close()
        time.sleep(600)

rank = ray.remote(num_cpus=0)(Rank).options(runtime_env={"env_vars": {"RANK": "1", "WORLD_SIZE": "2"}}).remote()
ray.get(rank.deep.remote())
"""


def test_stacks_come_from_every_node_and_a_node_that_is_gone_is_named(tmp_path: Path) -> None:
    """Its raylet is killed while a run of another node goes on."""
    made = RayCluster({})
    try:
        made.head()
        made.worker(ip="127.0.0.2")
        made.worker()  # a driver joins a node with the address of the last: never the one that is killed
        run, mark = Run(tmp_path, made), new_id()
        (run.code / "a_trainer.py").write_text(WAITS.replace('"ready"', repr(str(tmp_path / "ready"))))
        driver = threading.Thread(
            target=run.drive,
            args=(run.told(variables=["NPU_RL_RUN"]),),
            kwargs={"NPU_RL_RUN": mark, **made.mark},  # it would wait a minute for a head that is gone
        )
        driver.start()
        wait_for((tmp_path / "ready").exists, "the rank", 120)
        (run.record / "stacks").mkdir()
        file, env = run.record / "stacks" / "1.json", {**os.environ, "PYTHONPATH": str(INJECTED)}
        collect = [sys.executable, "-m", "npu_rl_stacks", made.address, mark, str(file)]
        subprocess.run(collect, env=env, check=True, timeout=120)
        found = json.loads(file.read_text())
        assert len(found["nodes"]) == 3 and found["lost"] == found["silent"] == []
        first, *others = report_of(found).lines()
        assert first == "rank 0 of 2: gone, no node has its process"
        assert any(line.startswith("rank 1 (") and "a_trainer.py:7 in deep" in line for line in others), (
            others
        )
        (gone,) = [node["node"] for node in run.nodes["nodes"] if node["ip"] == "127.0.0.2"]
        (other,) = [pid for pid in made.processes() if node_of_raylet(pid) == gone]
        os.kill(other, signal.SIGKILL)
        env["NPU_RL_RAY"] = json.dumps({"address": made.address})
        fetch_worker_logs(Attempt(run.record, 1), sys.executable, env)
        assert len(lost_nodes(Attempt(run.record, 1).folder)) == 1
    finally:
        made.stop()
        driver.join()


def node_of_raylet(pid: int) -> str | None:
    """The node whose raylet it is."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if not words[0].endswith("/raylet"):
        return None
    return next(word.partition("=")[2] for word in words if word.startswith("--node_id="))
