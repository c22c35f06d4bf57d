"""What is looked at on a node, in this process: no Ray, no torch, any Python."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.lost_nodes import lost_nodes
from npu_rl.training.run.ray_start import ray_needs


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module("npu_rl_host", monkeypatch)
    return module("npu_rl_node", monkeypatch)


@pytest.fixture
def nodes(node: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module("npu_rl_odd_nodes", monkeypatch)
    return module("npu_rl_nodes", monkeypatch)


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, INJECTED / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, made)
    spec.loader.exec_module(made)
    return made


@pytest.mark.pypi
def test_the_tree_of_a_workspace_is_the_locks(node: ModuleType, quickstart_workspace: Path) -> None:
    lock = json.loads((quickstart_workspace / ".npu-rl" / "lock.json").read_text())
    assert node.tree_id(str(quickstart_workspace / "code")) == lock["tree"]


def test_the_tree_is_gits_own(node: ModuleType, tmp_path: Path) -> None:
    """Names that sort as folders do not, links, modes, odd bytes, an empty folder, which git has no word for."""
    files: Mapping[bytes, bytes] = {
        b"a/b": b"1",
        b"a.b": b"2",
        b"a-b/c": b"",
        b"x y/\xff\n": b"3",
        b"run.sh": b"4",
    }
    for name, data in files.items():
        path = os.fsencode(tmp_path) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "empty").mkdir()
    git = ["git", "-c", "core.fileMode=true", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    tree = subprocess.run([*git, "write-tree"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / ".git").rename(tmp_path.with_name("elsewhere"))
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "b.pyc").write_text("byte code is not looked at")
    assert node.tree_id(str(tmp_path)) == tree
    (tmp_path / "run.sh").chmod(0o644)
    assert node.tree_id(str(tmp_path)) != tree
    assert node.tree_id(str(tmp_path / "nowhere")) is None


def test_a_pipe_or_a_checkpoint_in_the_code_stops_nothing(node: ModuleType, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(1 << 40)
    first = node.tree_id(str(tmp_path))
    with (tmp_path / "weights").open("ab") as file:
        file.truncate((1 << 40) + 1)
    assert first and node.tree_id(str(tmp_path)) != first


def test_long_logs_are_cut_so_that_short_ones_come_whole(node: ModuleType, tmp_path: Path) -> None:
    from zlib import decompress

    for name, size in {"worker-1-0a-7.out": 5, "worker-2-0a-8.err": 9000, "worker-3-0a-9.out": 7000}.items():
        (tmp_path / name).write_bytes(b"x" * (size - 4) + b"last")
    (tmp_path / "worker-4-0b-7.out").write_text("another job's")
    (tmp_path / "raylet.out").write_text("Ray's own")
    (tmp_path / "worker-5-0a-7.out").symlink_to("/etc/passwd")
    taken = {
        name: decompress(data) for name, data in node.log_ends(str(tmp_path), "0a", 6000, 10_005).items()
    }
    assert {name: len(data) // 1000 for name, data in taken.items()} == {
        "worker-1-0a-7.out": 0, "worker-2-0a-8.err": 5, "worker-3-0a-9.out": 5
    }  # fmt: skip
    assert taken["worker-1-0a-7.out"] == b"xlast"
    assert taken["worker-2-0a-8.err"].startswith(b"[npu-rl: 4000 bytes before this are left out]\n")
    assert all(data.endswith(b"last") for data in taken.values())


# -- hosts that are not as the others


def told(node: ModuleType, folder: Path) -> dict[str, object]:
    """Return what a node of a run tells of itself."""
    run = {"paths": [], "packages": [], "code": str(folder), "record": str(folder)}
    answer: dict[str, object] = node.describe_node(run, {})
    return answer


def cluster(nodes: ModuleType, answer: dict[str, object], stacks: list[dict[str, object]]) -> list[object]:
    """Return Ray's list of nodes and what is known of each: node1, node2, ... with these facts."""
    rays = [{"NodeID": f"id{n}", "Resources": {"NPU": 16.0}} for n in range(1, len(stacks) + 1)]
    listed = [
        {
            **answer,
            "host": f"node{n}",
            "ip": f"10.0.0.{n}",
            "node": f"id{n}",
            "stack": {**answer["stack"], **stack},  # type: ignore[dict-item]
            "problems": [],
        }
        for n, stack in enumerate(stacks, 1)
    ]
    return [rays, listed]


def test_the_odd_node_is_found_by_the_files_of_its_host(
    node: ModuleType, nodes: ModuleType, tmp_path: Path
) -> None:
    """16 folders that look like hosts, one of which has another CANN, and lacks a die."""
    stacks = []
    for number in range(1, 17):
        root = tmp_path / f"host{number}"
        toolkit = root / "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux"
        toolkit.mkdir(parents=True)
        version = "8.1" if number == 3 else "8.2.RC1"
        (toolkit / "ascend_toolkit_install.info").write_text(f"version={version}\n")
        (root / "dev").mkdir()
        for die in range(15 if number == 3 else 16):
            (root / f"dev/davinci{die}").touch()
        stacks.append(sys.modules["npu_rl_host"].host_facts(str(root), {}))
    rays, listed = cluster(nodes, told(node, tmp_path), stacks)
    assert nodes._compare_hosts(rays, listed, listed[0], (0.0, 1e12)) == []
    bad = [entry for entry in listed if entry["problems"]]
    refused = nodes._refusal(bad, 16, 180.0)
    assert refused.details["why"].splitlines() == [
        "node3: CANN 8.1, the other 15: 8.2.RC1",
        "node3: NPUs 15, the other 15: 16",
    ]
    assert "npu-rl doctor" in refused.details["hint"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"missing": ["/not/there"]}, ("folder", "not on its PYTHONPATH, or no folder there: /not/there")),
        ({"writes": False}, ("record", "the folder of the run's record is not there, or can't be written")),
        (
            {"python": "3.10.1", "prefix": "/other"},
            ("python", "its workers run Python 3.10.1 at /other, the driver"),
        ),
        ({"packages": {"ray": "2.9"}}, ("python", "ray is 2.9, at the driver None")),
        ({"tree": "0" * 40}, ("tree", f"the code is tree {'0' * 40}, at the driver ")),
        ({"differ": ["HCCL_X"], "strays": []}, ("variables", "not as this run sets them: HCCL_X")),
    ],
)
def test_a_node_that_is_not_as_the_driver(
    node: ModuleType, nodes: ModuleType, tmp_path: Path, change: dict[str, Any], problem: tuple[str, str]
) -> None:
    here = {**told(node, tmp_path), "missing": [], "strays": [], "packages": {"ray": None}}
    assert nodes._problems(here, here) == []
    ((kind, text),) = nodes._problems({**here, **change}, here)
    assert kind == problem[0] and text.startswith(problem[1])
    assert kind in nodes._HINTS


def test_what_may_differ_is_noted(node: ModuleType, nodes: ModuleType, tmp_path: Path) -> None:
    answer = told(node, tmp_path)
    rays, listed = cluster(
        nodes, answer, [{"driver": "25.2.0"}, {"driver": "25.2.0"}, {"driver": None, "nofile": -1}]
    )
    listed[1]["clock"] -= 3600
    began = listed[0]["clock"] - 1
    notes = nodes._compare_hosts(rays, listed, listed[0], (began, began + 2))
    assert [entry["problems"] for entry in listed] == [[], [], []]
    assert len(notes) == 3
    assert notes[0] == "node2: its clock is 3599 seconds behind the driver's"
    assert notes[1] == "node3: driver not found, the other 2: 25.2.0"
    assert notes[2].startswith("node3: open files unlimited, the other 2: ")


def test_of_two_the_drivers_is_right_and_a_head_without_devices_is_not_asked(
    node: ModuleType, nodes: ModuleType, tmp_path: Path
) -> None:
    answer = told(node, tmp_path)
    rays, listed = cluster(nodes, answer, [{"torch": "2.8.0"}, {"torch": "2.7.1"}, {"torch": None}])
    rays[2]["Resources"] = {"CPU": 64.0}
    nodes._compare_hosts(rays, listed, listed[1], (0.0, 1e12))
    assert [entry["problems"] for entry in listed] == [
        [("host", "torch 2.8.0, the other: 2.7.1")],
        [],
        [],
    ]


# -- a cluster that lacks something, or has lost some ----------------------------------------------------------------


def ray_node(number: int, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {
        **{"NodeID": f"id{number}", "Alive": alive, "Resources": resources},
        **{"NodeManagerHostname": f"node{number}", "NodeManagerAddress": f"10.99.7.{number}"},
    }


def head(**resources: float) -> dict[str, Any]:
    return ray_node(1, **{"node:__internal_head__": 1.0}, **resources)


def needs(nodes: int = 2, dies: int = 16) -> dict[str, Any]:
    words = [f"cluster.nodes={nodes}", f"cluster.dies={dies}", "cluster.address=10.99.7.1:6379", "device=npu"]
    found = ray_needs(load_recipe("quickstart", words).recipe)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("nodes", "why", "hint"),
    [
        ([head(CPU=64), ray_node(2, CPU=64)], "0 of 2 nodes offer 16 NPU:\n  node1 (", "node1 (10.99.7.1), n"),
        ([head(CPU=64, GPU=1), ray_node(2, CPU=64, NPU=16)], "1 of 2 nodes offer 16 NPU", "on node1 (10.99.7.1), and"),
        ([head(CPU=64, NPU=16), ray_node(2, CPU=64, NPU=8)], "1 of 2 nodes offer 16 NPU", "on node2 (10.99.7.2), and"),
        ([head(CPU=64, NPU=16), ray_node(2, False, CPU=64, NPU=16)], "1 of 2 nodes offer 16 NPU", "not in Ray yet"),
        ([head(CPU=8, NPU=16), ray_node(2, CPU=8, NPU=16)], "All nodes together offer 16 CPU", "--num-cpus"),
    ],
)  # fmt: skip
def test_a_ray_that_lacks_what_the_recipe_needs_is_refused_with_the_nodes_to_start_it_on(
    nodes: list[dict[str, Any]], why: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = module("npu_rl_ray_needs", monkeypatch).lacking(nodes, needs())
    assert refused["why"].startswith(why) and hint in refused["hint"]


def test_devices_that_another_job_holds_are_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = module("npu_rl_ray_needs", monkeypatch).lacking
    nodes = [ray_node(number, CPU=64, NPU=16) for number in (1, 2, 3)]
    free = {"id1": {"CPU": 1.0, "NPU": 16.0}, "id2": {"CPU": 1.0}, "id3": {"NPU": 8.0}}
    refused = lacking(nodes, needs(), free)
    assert refused["what"].startswith("Another job holds")
    assert refused["why"].splitlines()[1:] == ["  node2 (10.99.7.2)", "  node3 (10.99.7.3)"]
    assert lacking(nodes, needs(), {**free, "id3": {"NPU": 16.0}}) is None
    assert lacking(nodes, needs()) is None
    assert lacking([], None) is None, "the run starts its own"
    assert ray_needs(load_recipe("quickstart").recipe) is None


def test_a_port_that_something_else_answers_is_refused(nodes: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n"))
        thread.start()
        with pytest.raises(nodes.Refused, match="No Ray head answers"):
            nodes.require_head(address)
        thread.join()
    with pytest.raises(nodes.Refused, match="No Ray head answers"):
        nodes.require_head(address)


def test_nodes_that_a_cluster_has_lost_are_told_with_their_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_of = module("npu_rl_lost_nodes", monkeypatch).lost_nodes
    attempt = Attempt(tmp_path, 1)
    began = [{"node": f"id{n}", "host": f"node{n}", "ip": f"10.99.7.{n}"} for n in (1, 2, 3)]
    attempt.nodes.write_text(json.dumps({"job": "01", "nodes": began}))
    now = [ray_node(1), {**ray_node(2, False), "DeathReasonMessage": "health check failed"}, ray_node(9)]
    lost = lost_of(now, attempt.nodes)
    assert [node["host"] for node in lost] == ["node2", "node3"]
    attempt.lost_nodes.write_text(json.dumps(lost))
    assert lost_nodes(attempt.folder) == ["node2 (10.99.7.2): health check failed", "node3 (10.99.7.3)"]
    assert lost_of(now, tmp_path / "none.json") == []
