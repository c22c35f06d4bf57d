"""Which of Megatron's groups have had a collective when verl's actor is made, by the pinned trees' own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.memory.device_overhead import EARLY_MEGATRON
from tests.patchsets.flagship_tree import run, tree

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]
RUNNER = Path(__file__).with_name("run_first_collectives.py")


@pytest.mark.parametrize("manifest", ["deepseek-r1-zero", "deepseek-v3-cann"])
def test_making_the_actor_broadcasts_over_the_data_parallel_groups(
    upstreams: Path, tmp_path: Path, manifest: str
) -> None:
    """By Megatron-core 0.12.1 and 0.8.0. Neither the parameters of one rank each nor the optimizer ask anybody."""
    for needed in ("torch", "transformers", "tensordict"):
        pytest.importorskip(needed)
    code = tree(upstreams, tmp_path / "code", ["verl", "Megatron-LM", "MindSpeed"], manifest=manifest)
    assert run(RUNNER, code) == {
        "two copies of experts": sorted(EARLY_MEGATRON),
        "tensor and data": sorted(EARLY_MEGATRON),
        "pipeline and tensor": [],
    }
