"""Patch chunked-prefill-check of patchset cann-recipes/bcd3be7: verl_patches' own rollout, up to vLLM's engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, used

for needed in ("torch", "ray", "transformers", "msgspec", "gguf", "blake3", "numba"):  # of verl and vLLM
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

MANIFEST = "deepseek-v3-cann"
RUNNER = Path(__file__).with_name("run_cann_rollout.py")
COMPONENTS = ["cann-recipes", "verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed"]
ALL = 64 * 32 + 1  # blocks of 128 for 64 sequences of 4,096 tokens, and vLLM's null block
JOBS: dict[str, dict[str, Any]] = {
    "all fit": {"blocks": ALL},
    "all fit, unpatched scheduler": {"blocks": ALL, "keeps room": False},
    "one waits": {"blocks": ALL - 1},
    "one is lost": {"blocks": ALL - 1, "keeps room": False},
    "not one": {"blocks": 32},
    "a step of all": {"blocks": 40, "step": 4096, "keeps room": False},
    "a long prompt": {"blocks": ALL, "prompt": 1025},
}


def rollouts(code: Path, **named: Any) -> dict[str, dict[str, Any]]:
    given = {"VLLM_PLUGINS": "", "VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1", **named}
    return dict(zip(JOBS, run(RUNNER, code, json.dumps(list(JOBS.values())), **given), strict=True))


def test_what_would_be_dropped_is_refused(patched_tree: Path, tmp_path: Path) -> None:
    """The rollout turns the scheduler on, whatever the recipe says: none of these sets it."""
    found = rollouts(patched_tree, usage=tmp_path / "usage")
    assert used(tmp_path / "usage", "chunked-prefill-check") == len(JOBS)
    errors = {name: one["error"] for name, one in found.items() if one["error"]}
    assert set(errors) == {"one is lost", "not one", "a long prompt"}
    assert "2047 blocks of 128 tokens for use" in errors["one is lost"]
    assert "may need 2048" in errors["one is lost"] and "NPU_RL_KV_CACHE_ROOM=1" in errors["one is lost"]
    assert "not even one fits" in errors["not one"]
    assert "at most 1024 tokens, but a prompt may have 1025" in errors["a long prompt"]
    assert "scheduler" not in found["a long prompt"]  # no engine was made
    assert found["all fit"]["scheduler"] == {"enabled": True, "chunked_prefill_enabled": False}
    warned = {name: one["warned"] for name, one in found.items() if one["warned"]}
    (line,) = warned.pop("one waits")
    assert "about 63 run at a time and the others wait" in line and not warned
    assert "max_sequences" not in line + "".join(errors.values())  # this rollout computes them


def test_switched_off_it_is_upstream(patched_tree: Path) -> None:
    found = rollouts(patched_tree, NPU_RL_CHUNKED_PREFILL_CHECK="0")
    assert [one["error"] + "".join(one["warned"]) for one in found.values()] == [""] * len(JOBS)
