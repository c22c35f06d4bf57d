"""The examples of verl_npu from nothing to the rehearsal: the real upstreams, one command after the other, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import run_cli

pytest.importorskip("torch")
pytest.importorskip("ray")
pytestmark = [pytest.mark.upstreams, pytest.mark.rehearsal, pytest.mark.pypi]

MANIFEST = "verl-npu-plugin"
GRPO, DAPO = "verl-npu-grpo-qwen3-235b", "verl-npu-dapo-qwen3-30b"


@pytest.mark.parametrize("recipe", [GRPO, DAPO])
@pytest.mark.parametrize("words", [["recipes", "check"], ["plan"], ["train", "--dry-run"]])
def test_up_to_the_dry_run(workspace: Path, env: dict[str, str], words: list[str], recipe: str) -> None:
    done = run_cli([*words, recipe, "--workspace", workspace], env, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("recipe", "used"),
    [
        # Megatron-core with MindSpeed trains, and the patched Qwen3-MoE of transformers generates.
        (GRPO, ("torch_npu.npu_fusion_attention", "mindspeed.npu_gmm", "torch_npu.npu_grouped_matmul")),
        # DAPO's own trainer, with FSDP over the patched Qwen3-MoE.
        (DAPO, ("torch_npu.npu_swiglu", "torch_npu.npu_rotary_mul", "torch_npu.npu_grouped_matmul")),
    ],
)
def test_it_trains_with_its_own_settings(
    workspace: Path, env: dict[str, str], recipe: str, used: tuple[str, ...]
) -> None:
    words = ["train", recipe, "--workspace", workspace, "steps=3", "--rehearse=train", "--json"]
    done = run_cli(words, env, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert len(report["train"]["curve"]) == 3
    if recipe == GRPO:  # DAPO's trainer does not compare rollout and actor
        assert report["train"]["transfer"] < 5e-4
    assert all(report["stood_in_for"][name] > 0 for name in used)
    assert report["train"]["recomputed"]["comparisons"]["advantages"] == 3
    runs = {patch["name"]: patch["runs"] for patch in report["patches"]}
    assert runs["0004-hf-rollout-repeats-once"] > 0
    for patch in ("0003-dapo-whole-groups", "0007-dapo-steps"):
        assert (runs[patch] > 0) == (recipe == DAPO)
