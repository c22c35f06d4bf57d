"""The patch router-bias of patchset verl/55e3c5b: the bias's way through verl's actor to the rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM imports
    pytest.importorskip(needed)

from tests.patchsets.run_router_choices import require_none_worse  # noqa: E402

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = WITNESSES / "router_bias_bfloat16_on_load.py"
CHOICES = ROOT / "tests/patchsets/run_router_choices.py"
COMPONENTS = ["verl", "vllm", "Megatron-LM"]
SLUG = "router-bias"


@pytest.fixture(scope="module")
def upstreams_ways(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("router-upstream")
    return ways(tree(upstreams, folder / "code", COMPONENTS, without=SLUG))


def ways(code: Path, **named: Any) -> dict[str, Any]:
    found: dict[str, Any] = run(WITNESS, code, npu=False, VLLM_USE_V1="1", **named)
    return found


def test_the_actor_and_the_rollout_route_alike(
    patched_tree: Path, upstreams_ways: dict[str, Any], tmp_path: Path
) -> None:
    """Upstream, both have steps of bfloat16, up to 1/16 at 14. Patched, the actor has the checkpoint's float32, and the
    rollout's error is that of bfloat16 at 0.1, whatever the offset. So few tokens get other experts by vLLM's routing
    than by Megatron-core's."""
    usage = tmp_path / "usage"
    patched = ways(patched_tree, usage=usage)
    assert not patched["fault"] and upstreams_ways["fault"]
    assert used(usage, SLUG) == 3 * len(patched["offsets"])  # once loaded, twice sent
    for offset, after in patched["offsets"].items():
        before = upstreams_ways["offsets"][offset]
        assert after["actor error"] < 1e-6
        assert after["sent"] == "torch.float32"
        assert after["rollout error"] <= 2**-12
        assert -0.05 < after["rollout's smallest"] < 0.01
        assert before["sent"] == "torch.bfloat16"  # before the first forward
        if float(offset) >= 1:
            assert before["actor error"] > 2**-9 < before["rollout error"]
        assert after["actor apart"] == 0 and after["rollout apart"] < 0.02
    # Of the tokens, by offset.
    for part, least in (("actor", (0, 0.15, 0.45, 0.8)), ("rollout", (0, 0.15, 0.25, 0.25))):
        shares = [one[f"{part} apart"] for one in upstreams_ways["offsets"].values()]
        assert all(share >= wanted for share, wanted in zip(shares, least, strict=True)), (part, shares)


def test_switched_off_it_is_upstream(
    patched_tree: Path, upstreams_ways: dict[str, Any], tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    assert ways(patched_tree, usage=usage, NPU_RL_ROUTER_BIAS="0") == upstreams_ways
    assert used(usage, SLUG) == 0


@pytest.mark.parametrize("routing", ["vllm", "megatron-core"])
def test_no_biases_are_routed_worse_than_upstream(routing: str, patched_tree: Path) -> None:
    require_none_worse(run(CHOICES, patched_tree, routing, npu=False, VLLM_USE_V1="1"))


def test_tokens_are_counted_exactly(patched_tree: Path) -> None:
    """Over 256 micro batches; switched off, bfloat16 rounds."""
    counts = WITNESSES / "expert_counts_bfloat16.py"
    found = run(counts, patched_tree, npu=False)
    assert not found["fault"] and found["counted"] == found["tokens"]
    upstream = run(counts, patched_tree, npu=False, NPU_RL_ROUTER_BIAS="0")
    assert upstream["fault"] and upstream["type"] == "torch.bfloat16"
    assert upstream["tokens"] == found["tokens"] != upstream["counted"]
