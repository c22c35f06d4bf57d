"""The patch router-bias of patchset verl/cccc2ef: the bias's way from a checkpoint through Pai's verl to a rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "tensordict", "omegaconf"):
    pytest.importorskip(needed)

from tests.patchsets.run_router_choices import require_none_worse  # noqa: E402

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = WITNESSES / "router_bias_bfloat16_on_load.py"
CHOICES = ROOT / "tests/patchsets/run_router_choices.py"
COMPONENTS, SLUG = ["Pai-Megatron-Patch"], "router-bias"
MANIFESTS = {  # by whether Megatron-core makes the bias float32 before a checkpoint is loaded
    "pai-megatron-deepseek-v3": False,
    "pai-megatron-deepseek-v3-mcore-250908": True,
}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_actor_and_the_rollout_route_alike(manifest: str, upstreams: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest=manifest)
    found = run(WITNESS, code, npu=False, usage=usage)
    assert not found["fault"], found
    assert used(usage, SLUG) == 3 * len(found["offsets"])  # once loaded, twice sent
    for one in found["offsets"].values():
        assert one["sent"] == "torch.float32"
        assert one["actor error"] < 1e-6 and one["actor apart"] == 0
        assert one["rollout apart"] < 0.02
    require_none_worse(run(CHOICES, code, "megatron-core", npu=False))


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_switched_off_it_is_upstream(manifest: str, upstreams: Path, tmp_path: Path) -> None:
    """Near 4 the bias has steps of 1/32: half the tokens get other experts from the actor, if it is rounded on load."""
    usage = tmp_path / "usage"
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest=manifest)
    found = run(WITNESS, code, npu=False, usage=usage, NPU_RL_ROUTER_BIAS="0")
    assert found["fault"]
    assert used(usage, SLUG) == 0
    one = found["offsets"]["4.0"]
    assert one["rollout error"] > 2**-7
    if MANIFESTS[manifest]:
        assert one["actor apart"] == 0
        assert one["rollout apart"] > 0.25
    else:
        assert one["sent"] == "torch.bfloat16"
        assert one["actor error"] > 2**-7 and one["actor apart"] > 0.45
