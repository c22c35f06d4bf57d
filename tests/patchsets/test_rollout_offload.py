"""The adaptation rollout-offload in verl 55e3c5b: what leaves the device, and what comes back to it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL, VLLM
from npu_rl.training.host.vllm_environment import ENVIRONMENT
from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "msgspec", "gguf", "blake3", "numba"):  # what vLLM's engine imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

ENGINE = Path(__file__).with_name("run_offload_engine.py")
DERIVED = Path(__file__).with_name("run_derived.py")
COMPONENTS = ["verl", "vllm", "Megatron-LM"]


def test_vllms_own_engine_sleeps(patched_tree: Path, tmp_path: Path) -> None:
    """The V1 engine, its scheduler, prefix cache and DeepSeek-V3: what leaves is the weights and the KV cache, to
    the byte, and other weights and the old ones again answer as they should."""
    (tmp_path / "models").mkdir()
    launched = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    single = {"MASTER_PORT": str(free_port()), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    found = run(
        ENGINE, patched_tree, str(tmp_path / "models"), npu=False, **ENVIRONMENT, **launched, **single,
        PYTHONPATH=os.pathsep.join(map(str, (INJECTED, REHEARSAL, VLLM, patched_tree))),
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


MATRICES = ["attention.kv_b_proj.weight", "experts.w13_weight", "experts.w2_weight"]


def test_its_attention_and_experts_come_back(upstreams: Path, tmp_path: Path) -> None:
    """MLA's halves are the new weights'; the experts, half of which are another rank's, keep Parameters and layout."""
    code = tree(upstreams, tmp_path / "code", ["vllm", "vllm-ascend"])
    found = run(DERIVED, code, VLLM_VERSION="0.9.1")
    assert found["upstream replaces"] == found["upstream loses"][1:] == MATRICES[1:]
    for one in found["rounds"]:
        assert one["freed"] == 4 * (24 * 16 + 2 * 12 * 12 + 2 * 12 * 6)
        assert one["asleep"] == [True, True, True]
        assert (one["unwritten"], one["left"]) == (MATRICES, [])
        assert one["same"] == dict.fromkeys(MATRICES, True)
        assert one["W_UK_T"] and one["W_UV"] and one["w13"] and one["w2"]
