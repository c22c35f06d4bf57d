"""Witnesses of faults in vllm-ascend's worker and model runner that no patch of its own files ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]
pytest.importorskip("torch")

HANG, BUFFERS = WITNESSES / "data_parallel_graph_hang.py", WITNESSES / "sleep_loses_buffers.py"
RUNNER = "vllm_ascend/worker/model_runner_v1.py"
VERSION = {"VLLM_PLUGINS": "none", "VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1"}
ASKED_ONCE = "        # Padding for DP\n        (num_tokens, num_tokens_across_dp, with_prefill,\n"
# vllm-ascend 99bf25af76
ASKED_TWICE = ASKED_ONCE.replace(
    "\n", "\n        num_pad, num_tokens_across_dp_native = self.get_dp_padding(num_tokens)\n", 1
)


def test_an_engine_without_requests_hangs_the_others(upstreams: Path, tmp_path: Path) -> None:
    """In graph mode; with upstream's later line in the dummy batch it does not."""
    code = tree(upstreams, tmp_path / "code", ["vllm", "vllm-ascend"], manifest="verl-npu-plugin")
    assert run(HANG, code) == {"fault": True, "both go on": {"eager": True, "graph": False}}
    text = (code / RUNNER).read_text()
    assert text.count(ASKED_ONCE) == 1
    (code / RUNNER).write_text(text.replace(ASKED_ONCE, ASKED_TWICE))
    assert run(HANG, code) == {"fault": False, "both go on": {"eager": True, "graph": True}}


def test_the_rollout_sleeps_at_no_level(upstreams: Path, tmp_path: Path) -> None:
    """verl's own sleep drops RoPE's cache with the weights; rollout-offload makes an engine without sleep mode."""
    for needed in ("msgspec", "gguf", "blake3", "numba"):  # of vLLM and vllm-ascend
        pytest.importorskip(needed)
    code = tree(upstreams, tmp_path / "code", ["verl", "vllm", "vllm-ascend"])
    assert run(BUFFERS, code, **VERSION) == {"fault": False, "sleep mode": False}
    found = run(BUFFERS, code, NPU_RL_ROLLOUT_OFFLOAD="0", **VERSION)
    assert found == {"fault": True, "sleep mode": True, "levels": [2], "values kept": False}
