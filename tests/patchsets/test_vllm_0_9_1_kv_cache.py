"""The patch kv-cache-reuse of patchset vllm/0.9.1: upstream's own EngineCore, patched and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM's engine imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

RUNNER = WITNESSES / "kv_cache_resized.py"
SAME = "model.layers.1.attn"
OVER_THE_END = {"fault": True, "calls": [[256, 256, True], [192, 192, False], [384, 384, True]]}
AS_AT_FIRST = {"fault": False, "calls": [[256, 256, True]] * 3}


@pytest.fixture(scope="module")
def patched_tree(code_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(None, tmp_path_factory.mktemp("kv") / "code", ["vllm"], laid=code_tree)


def test_a_cache_made_again_has_the_schedulers_blocks(
    code_tree: Path, patched_tree: Path, tmp_path: Path
) -> None:
    """Upstream, a later profile decides: with less memory the pool hands out blocks past the cache's end."""
    before = tree(None, tmp_path / "code", ["vllm"], without="kv-cache-reuse", laid=code_tree)
    assert run(RUNNER, before, npu=False) == OVER_THE_END
    usage = tmp_path / "usage"
    assert run(RUNNER, patched_tree, npu=False, usage=usage) == AS_AT_FIRST
    assert used(usage, "kv-cache-reuse") == 3


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    found = run(RUNNER, patched_tree, npu=False, usage=usage, NPU_RL_KV_CACHE_REUSE="0")
    assert found == OVER_THE_END
    assert used(usage, "kv-cache-reuse") == 0


def test_another_model_is_an_error(patched_tree: Path) -> None:
    found = run(RUNNER, patched_tree, SAME, "model.layers.9.attn", npu=False)
    assert "gone: model.layers.1.attn; new: model.layers.9.attn" in found["refused"]
