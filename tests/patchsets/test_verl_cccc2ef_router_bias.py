"""The patch router-bias of patchset verl/cccc2ef: the bias's way from a checkpoint through Pai's verl to a rollout."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.conftest import Patched
from tests.patchsets.flagship_tree import run, tree, used
from tests.patchsets.test_rollout_temperature import PAI, lay

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_router_bias.py")
SLUG = "router-bias"
_NUMBERS = random.Random(0)
BIAS = [4 + 0.1 * _NUMBERS.random() for _ in range(256)]


@pytest.fixture
def code(upstreams: Path, tmp_path: Path, patched: Patched) -> Path:
    """verl and Megatron-LM-250624 as Pai has them, and the flagship's vLLM: Pai's is installed, not in its tree."""
    laid = lay(PAI, upstreams, tmp_path / "code", patched)
    for path in ("verl/utils/megatron_utils.py", "verl/workers/sharding_manager/megatron_vllm.py"):
        (laid / path).write_bytes(patched("verl/cccc2ef", path, (laid / path).read_bytes()))
    shutil.copytree(tree(upstreams, tmp_path / "vllm", ["vllm"]), laid, dirs_exist_ok=True)
    return laid


def way(code: Path, folder: Path, **named: Any) -> dict[str, Any]:
    folder.mkdir()
    job = json.dumps({"biases": [BIAS]})
    found: dict[str, Any] = run(RUNNER, code, str(folder), job, npu=False, VLLM_USE_V1="1", **named)[0]
    return found


def test_the_actor_and_the_rollout_route_alike(code: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    found = way(code, tmp_path / "checkpoints", usage=usage)
    assert used(usage, SLUG) == 3  # once loaded, twice sent
    assert max(abs(a - b) for a, b in zip(found["actor"], BIAS, strict=True)) < 1e-6
    assert found["sent"] == "torch.float32"
    assert found["actor apart"] == 0
    assert found["rollout apart"] < 0.02


def test_switched_off_it_is_upstream(code: Path, tmp_path: Path) -> None:
    """The checkpoint's bias is rounded to steps of 1/32: half the tokens get other experts."""
    usage = tmp_path / "usage"
    found = way(code, tmp_path / "checkpoints", usage=usage, NPU_RL_ROUTER_BIAS="0")
    assert used(usage, SLUG) == 0
    assert found["sent"] == "torch.bfloat16"
    assert max(abs(a - b) for a, b in zip(found["actor"], BIAS, strict=True)) > 2**-7
    assert found["actor apart"] > 0.45
