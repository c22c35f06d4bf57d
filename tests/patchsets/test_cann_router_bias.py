"""The patches router-bias of verl/54c9b73 and cann-recipes/bcd3be7: the bias from MindSpeed-LLM to the rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, used
from tests.support import ROOT

for needed in ("torch", "msgspec", "gguf", "blake3", "numba"):  # what vLLM's engine imports
    pytest.importorskip(needed)

from tests.patchsets.run_router_choices import require_none_worse  # noqa: E402

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

MANIFEST = "deepseek-v3-cann"
WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/router_bias_bfloat16.py"
COMPONENTS = ["cann-recipes", "verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed", "MindSpeed-LLM"]
SLUG = "router-bias"


@pytest.fixture(scope="module")
def patched(patched_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    usage = tmp_path_factory.mktemp("router-cann-usage") / "usage"
    found = witness(patched_tree, usage=usage)
    return {**found, "used": used(usage, SLUG)}


def witness(code: Path, **named: Any) -> dict[str, Any]:
    found: dict[str, Any] = run(WITNESS, code, VLLM_VERSION="0.9.1", VLLM_PLUGINS="none", **named)
    return found


def test_the_actor_keeps_float32(patched: dict[str, Any]) -> None:
    """Through loading, forward, five updates and saving; the scores stay as they were."""
    assert patched["loaded apart"] == 0 and patched["moved by the rate"] > 0.99
    assert patched["saved"] == patched["counter"] == "torch.float32"
    assert patched["scores"] == "torch.bfloat16"


def test_the_rollout_routes_like_the_actor(patched: dict[str, Any]) -> None:
    assert patched["rollout apart"] < 0.05
    assert not patched["fault"] and patched["used"] == 2  # made float32, sent once


@pytest.mark.parametrize("routing", ["mindspeed-llm", "vllm"])
def test_no_biases_are_routed_worse_than_upstream(routing: str, patched_tree: Path) -> None:
    script = ROOT / "tests/patchsets/run_router_choices.py"
    require_none_worse(run(script, patched_tree, routing, VLLM_VERSION="0.9.1", VLLM_PLUGINS="none"))


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    """The bias never moves, and the tokens of the checkpoint's bias get other experts."""
    found = witness(patched_tree, usage=tmp_path / "usage", NPU_RL_ROUTER_BIAS="0")
    assert found["fault"] and found["saved"] == found["counter"] == "torch.bfloat16"
    assert found["loaded apart"] > 0.3 and found["moved by the rate"] == 0
    assert used(tmp_path / "usage", SLUG) == 0


def test_tokens_are_counted_exactly(patched_tree: Path) -> None:
    """Over 256 micro batches; switched off, bfloat16 rounds."""
    counts = ROOT / "npu_rl/recipes/faults/witnesses/expert_counts_bfloat16.py"
    found = run(counts, patched_tree)
    assert not found["fault"] and found["counted"] == found["tokens"]
    upstream = run(counts, patched_tree, NPU_RL_ROUTER_BIAS="0")
    assert upstream["fault"] and upstream["type"] == "torch.bfloat16"
    assert upstream["tokens"] == found["tokens"] != upstream["counted"]
