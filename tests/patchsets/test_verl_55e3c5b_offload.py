"""The patch rollout-offload of patchset verl/55e3c5b: verl's own rollout and sharding manager, patched and not."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, VLLM
from npu_rl.training.host.vllm_environment import ENVIRONMENT
from tests.patchsets.flagship_tree import run, tree, used

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM's engine imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_offload.py")
ENGINE = Path(__file__).with_name("run_offload_engine.py")
COMPONENTS = ["verl", "vllm", "Megatron-LM"]


@pytest.fixture(scope="module")
def upstreams_steps(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("offload-upstream") / "code"
    found: dict[str, Any] = run(
        RUNNER, tree(upstreams, folder, COMPONENTS, without="rollout-offload"), npu=False
    )
    return found


def test_memory_leaves_and_answers_stay(
    patched_tree: Path, upstreams_steps: dict[str, Any], tmp_path: Path
) -> None:
    """Upstream, all is left to vLLM's pool, and where that frees nothing, nothing is freed. Patched, verl's own steps
    free all of it, three times, and the answers are those of an engine that never slept."""
    usage = tmp_path / "usage"
    steps = run(RUNNER, patched_tree, npu=False, usage=usage)
    assert (upstreams_steps["sleep mode"], steps["sleep mode"]) == (True, False)
    full = upstreams_steps["bytes"][0]
    assert full > 10_000 and upstreams_steps["bytes"] == [full] * 7
    assert steps["bytes"] == [0, full, 0, full, 0, full, 0]
    first, second, third = steps["answers"]
    assert first == third != second
    assert used(usage, "rollout-offload") == 5
    assert steps["failure"] == "ArithmeticError: a kernel has failed" and steps["after failure"] == 0


def test_the_answers_are_those_of_an_engine_that_never_slept(
    patched_tree: Path, upstreams_steps: dict[str, Any]
) -> None:
    """After other weights too. (Upstream's engine here answers right since its derived tensors are views of the
    weights, as vLLM's own; vllm-ascend's are copies, of the first weights for ever.)"""
    steps = run(RUNNER, patched_tree, npu=False)
    assert steps["answers"] == upstreams_steps["answers"]


def test_switched_off_it_is_upstream(
    patched_tree: Path, upstreams_steps: dict[str, Any], tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    assert run(RUNNER, patched_tree, npu=False, usage=usage, NPU_RL_ROLLOUT_OFFLOAD="0") == upstreams_steps
    assert used(usage, "rollout-offload") == 0


def test_vllms_own_engine_sleeps(patched_tree: Path, tmp_path: Path) -> None:
    """The V1 engine, its scheduler, prefix cache and DeepSeek-V3: what leaves is the weights and the KV cache, to
    the byte, and other weights and the old ones again answer as they should."""
    (tmp_path / "models").mkdir()
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    single = {"MASTER_PORT": str(free_port()), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    found = run(
        ENGINE, patched_tree, str(tmp_path / "models"), npu=False, **ENVIRONMENT, **launched, **single,
        PYTHONPATH=os.pathsep.join(map(str, (INJECTED, VLLM, patched_tree))),
    )  # fmt: skip
    other, again, once_more = found["rounds"]
    assert found["first"] == again == once_more == found["level 1"] != other
    assert all(a != b for a, b in zip(other, again, strict=True))
    assert found["weights"] > 300_000 and found["cache"] > 1_000_000
    builder = 20  # bytes of the attention's metadata builder, which goes with the cache
    assert found["asleep"] == [found["weights"] + found["cache"] + builder] * 3
    assert found["awake"] == [0, 0, 0]
    assert len(set(found["blocks"])) == 1
    asleep, unsent = found["wrong"][::2], found["wrong"][1::2]
    assert all("asleep: kv_cache, weights" in message for message in asleep)
    assert all("model.embed_tokens.weight" in message for message in unsent)
    assert found["failure"] == ["ArithmeticError: a kernel has failed"]
    assert found["after failure"] == [found["asleep"][0], 0, 0]
    assert found["recovered"] == found["first"]


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port
