"""The patch router-bias of patchset verl/cccc2ef, on both Megatron-LMs of Pai-Megatron-Patch."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "tensordict", "omegaconf"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = WITNESSES / "expert_counts_bfloat16.py"
MANIFESTS = ("pai-megatron-deepseek-v3", "pai-megatron-deepseek-v3-mcore-250908")


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_tokens_are_counted_exactly(manifest: str, upstreams: Path, tmp_path: Path) -> None:
    found = run(WITNESS, tree(upstreams, tmp_path / "code", ["Pai-Megatron-Patch"], manifest=manifest))
    assert not found["fault"] and found["type"] == "torch.float32"
    assert found["counted"] == found["tokens"]


def test_switched_off_it_is_upstream(upstreams: Path, tmp_path: Path) -> None:
    code = tree(upstreams, tmp_path / "code", ["Pai-Megatron-Patch"], manifest=MANIFESTS[0])
    found = run(WITNESS, code, NPU_RL_ROUTER_BIAS="0")
    assert found["fault"] and found["type"] == "torch.bfloat16"
