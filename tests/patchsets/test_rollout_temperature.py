"""Adaptation rollout-temperature, on the Megatron actor of each pinned verl, and on verl_patches'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree
from tests.support import ROOT

for needed in ("torch", "tensordict", "omegaconf"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = ROOT / "npu_rl" / "recipes" / "faults" / "witnesses" / "actor_ignores_temperature.py"
COMPONENTS = {
    "deepseek-r1-zero": ["verl", "Megatron-LM"],
    "verl-npu-plugin": ["verl", "Megatron-LM"],
    "deepseek-v3-cann": [
        "cann-recipes",
        "verl",
        "Megatron-LM",
        "MindSpeed",
        "MindSpeed-LLM",
        "vllm",
        "vllm-ascend",
    ],
    "pai-megatron-deepseek-v3": ["Pai-Megatron-Patch"],
}


@pytest.mark.parametrize("manifest", COMPONENTS)
def test_log_probs_are_of_the_distribution_sampled(manifest: str, upstreams: Path, tmp_path: Path) -> None:
    """log_softmax(logits / 0.9) for samples drawn at 0.9, in compute_log_prob and in the update."""
    code = tree(upstreams, tmp_path / "code", COMPONENTS[manifest], manifest=manifest)
    found: dict[str, Any] = run(WITNESS, code, VLLM_VERSION="0.9.1")
    assert not found["fault"], found


@pytest.mark.parametrize("manifest", COMPONENTS)
def test_switched_off_it_is_upstream(manifest: str, upstreams: Path, tmp_path: Path) -> None:
    """Of softmax(logits), which no other figure shows but ppo_kl: it is to be 0 in a first update."""
    code = tree(upstreams, tmp_path / "code", COMPONENTS[manifest], manifest=manifest)
    found = run(WITNESS, code, NPU_RL_ROLLOUT_TEMPERATURE="0", VLLM_VERSION="0.9.1")
    assert found["fault"] and found["mean log-probability apart"] > 0.05, found
    assert abs(found["ppo_kl of the update, 0 expected"]) > 1e-3, found
