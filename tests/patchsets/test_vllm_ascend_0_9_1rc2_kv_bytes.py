"""The patch cached-kv-bytes of patchset vllm-ascend/0.9.1rc2: an earlier run does not limit the KV cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import run, used
from tests.support import ROOT

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["vllm", "vllm-ascend"]
WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/kv_cache_of_an_earlier_run.py"
SLUG = "cached-kv-bytes"


def test_the_kv_cache_is_of_this_runs_memory(patched_tree: Path, tmp_path: Path) -> None:
    found = run(WITNESS, patched_tree, usage=tmp_path / "usage", VLLM_VERSION="0.9.1")
    assert found == {"fault": False, "GiB alone": 33.6, "GiB after a run with less": 33.6}
    assert used(tmp_path / "usage", SLUG) == 3


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    found = run(WITNESS, patched_tree, usage=usage, VLLM_VERSION="0.9.1", NPU_RL_CACHED_KV_BYTES="0")
    assert found == {"fault": True, "GiB alone": 33.6, "GiB after a run with less": 8.0}
    assert used(usage, SLUG) == 0
