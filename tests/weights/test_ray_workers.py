"""`--ray`: the same bytes from the tasks of two Ray nodes as from one pool, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, WeightsError
from npu_rl.weights.checkpoints.cast_weights import cast_weights
from npu_rl.weights.checkpoints.ray_workers import RayWorkers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.layouts.placements import LegacyRanks
from tests.support import ROOT, clean_env
from tests.tensors import megatron_checkpoints as tiny
from tests.training.ray_cluster import RayCluster
from tests.weights.inline_workers import InlineWorkers, audit, convert
from tests.weights.tiny_checkpoint import Maker, f32, write_checkpoint

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = pytest.mark.rehearsal
LAYOUT = OutputLayout("legacy", LegacyRanks(4, (1, 2, 1), 2, True))
FILES = 24
SHARDS = 24
NODE = "TEST_RAY_NODE"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    made = RayCluster({})
    try:
        made.head()
        made.worker()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for a signal to come amid the cast."""
    shards = {
        f"model-{i:05}-of-{SHARDS:05}.safetensors": {
            **shard(i),
            **Maker(i).plain(f"model.layers.0.mlp.experts.{i}.bias", 6 << 20),
        }
        for i in range(1, SHARDS + 1)
    }
    return write_checkpoint(tmp_path_factory.mktemp("fp8") / "in", shards)


def shard(number: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return Maker(number).weight(f"model.layers.0.mlp.experts.{number}.up_proj.weight", 128, 200)


def pool(cluster: RayCluster, count: int = 1) -> RayWorkers:
    return RayWorkers(sys.executable, count, address=cluster.address)


def same(one: Path, other: Path) -> None:
    assert content(one) == content(other)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".jsonl"
    }


def working(cluster: RayCluster, mark: bytes = b"") -> list[int]:
    """Processes that run a task, on all nodes or on the one with the mark."""
    found = []
    for pid in cluster.processes():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::run_task") and has_mark(pid, mark):
            found.append(pid)
    return found


def has_mark(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def signalled(pid: int, number: signal.Signals, which: list[int]) -> None:
    try:
        os.kill(pid, number)
        which.append(pid)
    except ProcessLookupError:
        pass


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def finished(journal: Path) -> int:
    return journal.read_text().count('"shard"') if journal.exists() else 0


def test_a_conversion_on_two_nodes_writes_the_same_bytes(cluster: RayCluster, tmp_path: Path) -> None:
    """Also after a SIGKILL amid it, of the process that keeps the journal; the tasks end with it."""
    hf = tiny.write_hf(tmp_path / "hf", tiny.DEEPSEEK, tiny.hf_tensors(tiny.DEEPSEEK))
    here, there = tmp_path / "here", tmp_path / "there"
    convert(hf, here, LAYOUT)

    code = f"""if True:
        import sys
        from pathlib import Path
        from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
        from npu_rl.weights.checkpoints.resumable_output import WorkProgress
        from tests.weights.test_ray_workers import *

        class Slow(WorkProgress):
            def shard(self, *_of):
                time.sleep(0.2)

        workers = RayWorkers(sys.executable, 1, address={cluster.address!r})
        convert_weights(ConvertOptions(Path({str(hf)!r}), Path({str(there)!r}), LAYOUT, None), workers, Slow())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=clean_env(tmp_path), cwd=ROOT, stderr=subprocess.PIPE
    )
    wait_until(lambda: finished(there / "npu-rl-convert.jsonl") > 2 or process.poll() is not None)
    process.kill()
    process.communicate()
    before = finished(there / "npu-rl-convert.jsonl")
    assert 2 < before < FILES
    assert not (there / "latest_checkpointed_iteration.txt").exists()
    wait_until(lambda: not working(cluster), 60)

    report = convert(hf, there, LAYOUT, workers=pool(cluster))
    same(here, there)
    assert report["files_kept"] == before
    assert len(report["hosts"]) == 2
    assert sum(host["tasks"] for host in report["hosts"]) == FILES - before
    assert audit(hf, there, workers=pool(cluster))["result"] == "equal"


def test_sigterm_leaves_no_task(cluster: RayCluster, fp8: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    words = ["weights", "cast", str(fp8), str(target), "--ray", cluster.address, "--workers", "1", "--json"]
    argv = [sys.executable, "-m", "npu_rl", *words]
    env = clean_env(tmp_path)
    process = subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: finished(target / "npu-rl-cast.jsonl") > 0 or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert working(cluster) == []
    assert not list(target.rglob("*.part"))
    before = finished(target / "npu-rl-cast.jsonl")
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shards_kept"] == before
    assert len(list(target.glob("*.safetensors"))) == SHARDS


def test_what_is_wrong_with_a_file_is_told_with_the_host(cluster: RayCluster, tmp_path: Path) -> None:
    tensors = shard(1)
    (scale,) = (name for name in tensors if name.endswith("_scale_inv"))
    tensors[scale] = ("F32", (1, 2), f32([1.0, 0.0]))
    source = write_checkpoint(tmp_path / "in", {"model-00001-of-00001.safetensors": tensors})
    with pytest.raises(WeightsError) as caught:
        cast_weights(source, tmp_path / "out", pool(cluster))
    assert caught.value.what.startswith("Invalid scale")
    assert f"{scale}[0, 1], on {os.uname().nodename} (" in str(caught.value.where)


def test_a_host_without_torch_is_named_before_anything_is_written(fp8: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('no torch')\n")
    other = RayCluster({"PYTHONPATH": str(tmp_path / "broken")})
    try:
        other.head()
        with pytest.raises(HostError) as caught:
            cast_weights(fp8, tmp_path / "out", pool(other))
    finally:
        other.stop()
    assert caught.value.what == "Not every host of the Ray cluster can take tasks"
    assert "has no torch" in str(caught.value.why)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["npu-rl-cast.jsonl"]


def test_a_head_that_is_not_there_is_named(fp8: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"No Ray head answers at 127\.0\.0\.1:9"):
        cast_weights(fp8, tmp_path / "out", RayWorkers(sys.executable, 1, address="127.0.0.1:9"))


def test_a_cast_outlives_a_node(fp8: Path, tmp_path: Path) -> None:
    """Killed with all its processes while it runs a task, in a cluster of its own: Ray counts it for some time yet."""
    cast_weights(fp8, tmp_path / "here", InlineWorkers())
    cluster = RayCluster({})
    try:
        cluster.head()
        cluster.worker(ip="127.0.0.2", **{NODE: "lost"})
        cluster.worker()  # the driver joins a node with the address of the last: not that one
        report, killed = cast_while_a_node_dies(fp8, tmp_path / "there", cluster)
    finally:
        cluster.stop()
    assert killed and len(report["hosts"]) == 3
    same(tmp_path / "here", tmp_path / "there")
    assert sum(host["tasks"] for host in report["hosts"]) == SHARDS


def cast_while_a_node_dies(
    source: Path, target: Path, cluster: RayCluster
) -> tuple[dict[str, Any], list[int]]:
    """The cast's report, and the processes of the node marked "lost" that were killed."""
    mark = f"{NODE}=lost".encode()
    killed: list[int] = []

    def kill_node() -> None:
        """The tasks of the other nodes stand still until there is one on this."""
        stopped: list[int] = []
        try:
            while not (there := working(cluster, mark)):
                for pid in working(cluster):
                    if pid not in stopped and pid not in working(cluster, mark):
                        signalled(pid, signal.SIGSTOP, stopped)
            assert there
            for pid in cluster.processes():
                if has_mark(pid, mark):
                    signalled(pid, signal.SIGKILL, killed)
        finally:
            for pid in stopped:
                signalled(pid, signal.SIGCONT, [])

    killer = threading.Thread(target=kill_node, daemon=True)
    killer.start()
    report = cast_weights(source, target, pool(cluster)).to_json()
    killer.join(60)
    return report, killed
