"""Adaptation rollout-temperature, on the Megatron actor of each pinned verl, and on verl_patches'."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from npu_rl.lock import lock_model
from npu_rl.manifest.load_manifest import load_manifest
from tests.patchsets.conftest import Patched
from tests.patchsets.flagship_tree import run, tree
from tests.support import ROOT

for needed in ("torch", "tensordict", "omegaconf"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = ROOT / "npu_rl" / "faults" / "witnesses" / "actor_ignores_temperature.py"
PAI = "pai-megatron-deepseek-v3"
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
    PAI: [],
}


def lay(manifest: str, upstreams: Path, folder: Path, patched: Patched) -> Path:
    if manifest != PAI:
        return tree(upstreams, folder, COMPONENTS[manifest], manifest=manifest)
    code = tree(upstreams, folder, [], manifest=manifest)
    lock = lock_model.read(lock_model.lock_path(load_manifest(manifest).path))
    pins = {one.path.rsplit("/", 1)[-1]: one.pin for one in lock.components["Pai-Megatron-Patch"].submodules}
    for repository, pin, path in (
        ("volcengine+verl", pins["verl"], "verl"),
        ("NVIDIA+Megatron-LM", pins["Megatron-LM-250624"], "megatron"),
    ):
        packed = subprocess.run(
            ["git", f"--git-dir={upstreams / repository / 'repo'}", "archive", pin, path],
            stdout=subprocess.PIPE,
            check=True,
        )
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
            archive.extractall(code, filter="data")
    actor = "verl/workers/actor/megatron_actor.py"
    (code / actor).write_bytes(patched("verl/cccc2ef", actor, (code / actor).read_bytes()))
    return code


@pytest.mark.parametrize("manifest", COMPONENTS)
def test_log_probs_are_of_the_distribution_sampled(
    manifest: str, upstreams: Path, tmp_path: Path, patched: Patched
) -> None:
    """log_softmax(logits / 0.9) for samples drawn at 0.9, in compute_log_prob and in the update."""
    found: dict[str, Any] = run(
        WITNESS, lay(manifest, upstreams, tmp_path / "code", patched), VLLM_VERSION="0.9.1"
    )
    assert not found["fault"], found


@pytest.mark.parametrize("manifest", COMPONENTS)
def test_switched_off_it_is_upstream(
    manifest: str, upstreams: Path, tmp_path: Path, patched: Patched
) -> None:
    """Of softmax(logits), which no other figure shows but ppo_kl: it is to be 0 in a first update."""
    code = lay(manifest, upstreams, tmp_path / "code", patched)
    found = run(WITNESS, code, NPU_RL_ROLLOUT_TEMPERATURE="0", VLLM_VERSION="0.9.1")
    assert found["fault"] and found["mean log-probability apart"] > 0.05, found
    assert abs(found["ppo_kl of the update, 0 expected"]) > 1e-3, found
