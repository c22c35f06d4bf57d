"""The patch router-bias of patchset verl/55e3c5b: the bias's way through verl's actor to the rollout."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_router_bias.py")
COMPONENTS = ["verl", "vllm", "Megatron-LM"]
SLUG = "router-bias"
OFFSETS = (0.0, 1.0, 4.0, 14.0)


def spread(offset: float) -> list[float]:
    numbers = random.Random(0)
    return [offset + 0.1 * numbers.random() for _ in range(256)]


BIASES = [spread(offset) for offset in OFFSETS]


@pytest.fixture(scope="module")
def patched_tree(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(upstreams, tmp_path_factory.mktemp("router") / "code", COMPONENTS)


@pytest.fixture(scope="module")
def upstreams_ways(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("router-upstream")
    return ways(tree(upstreams, folder / "code", COMPONENTS, without=SLUG), folder / "checkpoints")


def ways(code: Path, folder: Path, **named: Any) -> list[dict[str, Any]]:
    folder.mkdir()
    found: list[dict[str, Any]] = run(
        RUNNER, code, str(folder), json.dumps({"biases": BIASES}), npu=False, VLLM_USE_V1="1", **named
    )
    return found


def error(found: list[float], bias: list[float]) -> float:
    """The largest difference, but for an offset of all entries."""
    apart = [a - b for a, b in zip(found, bias, strict=True)]
    return (max(apart) - min(apart)) / 2


def test_the_actor_and_the_rollout_route_alike(
    patched_tree: Path, upstreams_ways: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Upstream, both have steps of bfloat16, up to 1/16 at 14. Patched, the actor has the checkpoint's float32, and the
    rollout's error is that of bfloat16 at 0.1, whatever the offset. So few tokens get other experts by vLLM's routing
    than by Megatron-core's."""
    usage = tmp_path / "usage"
    patched = ways(patched_tree, tmp_path / "checkpoints", usage=usage)
    assert used(usage, SLUG) == 3 * len(BIASES)  # once loaded, twice sent
    for bias, before, after in zip(BIASES, upstreams_ways, patched, strict=True):
        assert error(after["actor"], bias) < 1e-6
        assert after["sent"] == "torch.float32"
        assert error(after["rollout"], bias) <= 2**-12
        assert min(after["rollout"]) == 0
        assert before["sent"] == "torch.bfloat16"  # before the first forward
        if bias[0] > 1:
            assert error(before["actor"], bias) > 2**-9 < error(before["rollout"], bias)
    shares = [[way[f"{part} apart"] for way in upstreams_ways] for part in ("actor", "rollout")]
    for share, least in zip(shares[0], (0, 0.15, 0.45, 0.8), strict=True):  # of the tokens, by offset
        assert share >= least
    for share, least in zip(shares[1], (0, 0.15, 0.25, 0.25), strict=True):
        assert share >= least
    assert all(way["actor apart"] == 0 and way["rollout apart"] < 0.02 for way in patched)


def test_switched_off_it_is_upstream(
    patched_tree: Path, upstreams_ways: list[dict[str, Any]], tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    found = ways(patched_tree, tmp_path / "checkpoints", usage=usage, NPU_RL_ROUTER_BIAS="0")
    assert found == upstreams_ways
    assert used(usage, SLUG) == 0


def test_tokens_are_counted_exactly(patched_tree: Path) -> None:
    """Over 256 micro batches; switched off, bfloat16 rounds."""
    counts = ROOT / "npu_rl/faults/witnesses/expert_counts_bfloat16.py"
    found = run(counts, patched_tree, npu=False)
    assert not found["fault"] and found["counted"] == found["tokens"]
    upstream = run(counts, patched_tree, npu=False, NPU_RL_ROUTER_BIAS="0")
    assert upstream["fault"] and upstream["type"] == "torch.bfloat16"
    assert upstream["tokens"] == found["tokens"] != upstream["counted"]
