"""The patchset cann-recipes/bcd3be7, held against the commit it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patchsets.conftest import Patched
from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT, git

RUNNER = Path(__file__).with_name("run_node_address.py")
WITNESSES = ROOT / "npu_rl" / "recipes" / "faults" / "witnesses"
CHECKPOINT = WITNESSES / "dies_after_checkpoint.py"
COMPILES = WITNESSES / "compiles_into_the_tree.py"
NOISE = WITNESSES / "same_noise_each_step.py"
WORKER = ["cann-recipes", "verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed"]
START = ["cann-recipes", "Megatron-LM", "MindSpeed", "MindSpeed-LLM"]
VERSION = {"VLLM_VERSION": "0.9.1"}  # vllm-ascend asks for it where vLLM has no _version.py
PIN = "bcd3be7a96fa17a5d9ca243baf37d13590714633"
FILE = "deepseek/verl_patches/workers/vllm_rollout/vllm_parallel_state.py"
IFCONFIG = """\
#!/bin/sh
[ "$1" = eth7 ] || { echo "$1: error fetching interface information: Device not found" >&2; exit 1; }
echo "eth7: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500"
echo "        inet 10.99.0.7  netmask 255.255.255.0  broadcast 10.99.0.255"
"""


def address(file: Path, content: bytes, interface: str) -> subprocess.CompletedProcess[str]:
    folder = file.parent
    folder.mkdir()
    file.write_bytes(content)
    (folder / "ifconfig").write_text(IFCONFIG)
    (folder / "ifconfig").chmod(0o755)
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HCCL_SOCKET_IFNAME": interface}
    return subprocess.run(
        [sys.executable, "-I", "-B", str(RUNNER), str(file)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.upstreams
def test_a_node_without_a_route_has_its_interfaces_address(
    upstreams: Path, patched: Patched, tmp_path: Path
) -> None:
    """Upstream ends with a NameError there, for want of the import."""
    content = git(
        "cat-file", "blob", f"{PIN}:{FILE}", git_dir=upstreams / "hicann+cann-recipes-train" / "repo"
    )
    upstream = content.encode() + b"\n"
    before = address(tmp_path / "before" / "state.py", upstream, "eth7")
    assert "name 're' is not defined" in before.stderr
    ours = patched("cann-recipes/bcd3be7", FILE, upstream)
    after = address(tmp_path / "after" / "state.py", ours, "eth7")
    assert (after.returncode, after.stdout) == (0, "10.99.0.7\n"), after.stderr
    # An interface that isn't there is upstream's own fallback, by the host's name.
    other = address(tmp_path / "other" / "state.py", ours, "eth9")
    assert other.returncode == 0 and other.stdout != "10.99.0.7\n", other.stderr


@pytest.fixture(scope="module")
def worker(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("torch", "ray", "transformers", "msgspec", "gguf", "blake3", "numba"):  # of verl and vLLM
        pytest.importorskip(needed)
    return tree(upstreams, tmp_path_factory.mktemp("worker") / "code", WORKER, manifest="deepseek-v3-cann")


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_training_goes_on_after_a_checkpoint(worker: Path, tmp_path: Path) -> None:
    """Every 1, 2, 4 and 5 steps, with and without validation, from the start and resumed; 0 is never."""
    found = run(CHECKPOINT, worker, usage=tmp_path / "usage", **VERSION)
    assert found == {"fault": False, "ends at step": dict.fromkeys(found["ends at step"])}
    assert len(found["ends at step"]) == 10
    # 9, 4 and 2 checkpoints, the last of which nothing follows; a validation reloads by itself
    assert used(tmp_path / "usage", "reload-after-checkpoint") == 8 + 4 + 2 + 7 + 4 + 2


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_switched_off_the_step_after_a_checkpoint_dies(worker: Path) -> None:
    """A validation in the same step saves it, as upstream: it sets the flag that the next generation looks at."""
    found = run(CHECKPOINT, worker, NPU_RL_RELOAD_AFTER_CHECKPOINT="0", **VERSION)
    assert found["fault"] is True
    ends = found["ends at step"]
    assert ends["checkpoint every 1, validation every -"] == 2
    assert ends["checkpoint every 2, validation every 5"] == 3
    assert ends["checkpoint every 4, validation every 5, resumed"] == 5
    lives = {name for name, step in ends.items() if step is None}
    assert lives == {
        "checkpoint every 5, validation every 5", "checkpoint every 1, validation every 1",
        "checkpoint every -, validation every -, resumed", "checkpoint every -, validation every 5",
    }  # fmt: skip


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_each_step_of_each_replica_draws_its_own(worker: Path, tmp_path: Path) -> None:
    """Three steps and two validations on two replicas; the tensor-parallel ranks of one draw alike."""
    found = run(NOISE, worker, usage=tmp_path / "usage", **VERSION)
    assert found == {
        "fault": False, "generations": 10, "different": 10, "tensor-parallel ranks agree": True,
        "a resumed step draws the same": True, "training's state is kept": True,
    }  # fmt: skip
    # by each of four ranks, and once more as a resumed run
    assert used(tmp_path / "usage", "noise-for-each-step") == 4 * (3 + 2 + 1)


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_switched_off_all_draw_the_same(upstreams: Path, worker: Path, tmp_path: Path) -> None:
    """As upstream: without the patch it is the same."""
    found = run(NOISE, worker, NPU_RL_NOISE_FOR_EACH_STEP="0", **VERSION)
    assert found == {
        "fault": True, "generations": 10, "different": 1, "tensor-parallel ranks agree": True,
        "a resumed step draws the same": True, "training's state is kept": False,
    }  # fmt: skip
    manifest, slug = "deepseek-v3-cann", "noise-for-each-step"
    upstream = tree(upstreams, tmp_path / "code", WORKER, manifest=manifest, without=slug)
    assert run(NOISE, upstream, **VERSION) == found


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_nothing_is_compiled_in_the_tree(upstreams: Path, tmp_path: Path) -> None:
    """Megatron starts all the same. Without the patch make is called in the tree, once."""
    for needed in ("torch", "transformers", "omegaconf"):
        pytest.importorskip(needed)
    manifest, slug = "deepseek-v3-cann", "nothing-compiled-in-the-tree"
    found = run(COMPILES, tree(upstreams, tmp_path / "patched", START, manifest=manifest), **VERSION)
    assert found == {"fault": False, "started": True, "compiled in": []}
    upstream = tree(upstreams, tmp_path / "upstream", START, manifest=manifest, without=slug)
    found = run(COMPILES, upstream, **VERSION)
    assert found == {"fault": True, "started": True, "compiled in": ["megatron/core/datasets"]}
