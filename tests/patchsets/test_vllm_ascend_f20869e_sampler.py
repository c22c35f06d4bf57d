"""Patch sampler-arguments of vllm-ascend/f20869e: the optimised top-k and top-p filter of that commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import run, tree
from tests.support import ROOT

for needed in ("torch", "msgspec", "gguf", "blake3", "numba"):  # what vLLM's engine imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESSES = ROOT / "npu_rl" / "recipes" / "faults" / "witnesses"
SWAPPED = WITNESSES / "topk_topp_swapped.py"
OTHERWISE = WITNESSES / "topk_optimize_filters_otherwise.py"
COMPONENTS = ["vllm", "vllm-ascend"]
VERSION = {"VLLM_VERSION": "0.9.1"}


def test_k_is_k_and_p_is_p(upstreams: Path, tmp_path: Path) -> None:
    """At most 50 tokens are left of 129,280. That it is still not vLLM's filter is why the manifest leaves it off."""
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest="deepseek-v3-cann")
    found = run(SWAPPED, code, **VERSION)
    assert not found["fault"] and max(found["tokens kept"]) <= 50, found
    other = run(OTHERWISE, code, **VERSION)
    assert other["fault"] and min(other["tokens kept"]) > max(other["tokens kept by vLLM"]), other


def test_switched_off_it_is_upstream(upstreams: Path, tmp_path: Path) -> None:
    """Upstream takes 0.9 for a number of tokens."""
    upstream = tree(upstreams, tmp_path / "upstream", COMPONENTS, patched=False, manifest="deepseek-v3-cann")
    before = run(SWAPPED, upstream, **VERSION)
    assert before["fault"] and "out of bounds" in before["error"], before
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest="deepseek-v3-cann")
    assert run(SWAPPED, code, NPU_RL_SAMPLER_ARGUMENTS="0", **VERSION) == before
