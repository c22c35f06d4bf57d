"""The patchsets for transformers 8365f70 beside those of verl_npu: what those left broken or can't be applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["transformers"]
RUNNER = Path(__file__).with_name("run_transformers.py")
MANIFEST = "verl-npu-plugin"
SAME = 1e-5  # float32, another order of the sums


def test_a_packed_query_keeps_its_bounds(patched_tree: Path) -> None:
    """The length of a sequence part makes one long sequence of two packed ones."""
    found = run(WITNESSES / "packed_query_length.py", patched_tree)
    assert found == {"fault": False, "bounds": [[0, 3, 8], [0, 3, 8]], "longest": [5, 5]}


def test_a_dense_layer_of_qwen3_moe(patched_tree: Path) -> None:
    found = run(WITNESSES / "qwen3_moe_dense_layer_dies.py", patched_tree)
    assert found.get("error") is None
    assert not found["fault"] and found["off"] < SAME


def test_a_batch_keeps_its_shape(patched_tree: Path) -> None:
    found = run(WITNESSES / "qwen3_moe_mixes_sequences.py", patched_tree)
    assert not found["fault"]
    assert found["shape"] == [2, 3, 8]
    assert found["off"] < SAME and found["gradient off"] < SAME


def test_the_fused_rope_of_qwen2(patched_tree: Path) -> None:
    found = run(RUNNER, patched_tree)
    assert found.get("error") is None
    assert found["off"] < SAME
