"""The patchset mbridge/0cd4ae2: Megatron-core's router by mbridge's configuration, and what mbridge reads and saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, used
from tests.support import ROOT

for needed in ("torch", "transformers", "safetensors"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["mbridge", "Megatron-LM", "MindSpeed"]
MANIFEST = "today"
ROUTES = WITNESSES / "router_groups_lost.py"
ROPE = WITNESSES / "rope_theta_of_transformers_5.py"
SAVES = WITNESSES / "shards_not_saved.py"
READS = Path(__file__).with_name("run_fp8_reader.py")


def test_tokens_go_where_the_report_sends_them(patched_tree: Path, tmp_path: Path) -> None:
    found = run(ROUTES, patched_tree, usage=tmp_path / "usage")
    assert found["groups"] == [8, 4]
    assert not found["fault"] and found["tokens with other experts"] == 0
    assert used(tmp_path / "usage", "router-groups") > 0


def test_switched_off_the_groups_are_lost(patched_tree: Path, tmp_path: Path) -> None:
    found = run(ROUTES, patched_tree, usage=tmp_path / "usage", NPU_RL_ROUTER_GROUPS="0")
    assert found["groups"] == [None, None]
    assert found["tokens with other experts"] == 1778
    assert used(tmp_path / "usage", "router-groups") == 0


def test_fp8_is_read_as_by_the_cast(patched_tree: Path, tmp_path: Path) -> None:
    """Every bit: of a weight with blocks cut short, of one whose scale is in another file, and of one without."""
    found = run(
        READS, patched_tree, str(ROOT / "npu_rl/weights/tensors"), npu=False, usage=tmp_path / "usage"
    )
    assert found == {"layer.0.weight": True, "layer.1.weight": True, "norm.weight": True}
    assert used(tmp_path / "usage", "fp8-reader") == 2


def test_switched_off_fp8_wants_cuda(patched_tree: Path) -> None:
    found = run(READS, patched_tree, str(ROOT / "npu_rl/weights/tensors"), npu=False, NPU_RL_FP8_READER="0")
    assert "CUDA" in found["error"]


def test_both_layouts_of_rope_are_read(patched_tree: Path, tmp_path: Path) -> None:
    found = run(ROPE, patched_tree, usage=tmp_path / "usage")
    assert found == {"fault": False, "rotary_base": {"4": [10000.0, 10000.0], "5": [10000.0, 10000.0]}}
    assert used(tmp_path / "usage", "rope-layout") == 2


def test_switched_off_the_layout_of_transformers_5_ends_the_run(patched_tree: Path) -> None:
    found = run(ROPE, patched_tree, NPU_RL_ROPE_LAYOUT="0")
    assert found == {"fault": True, "rotary_base": {"4": [10000.0, 10000.0], "5": [None, None]}}


def test_every_tensor_of_the_run_is_saved(patched_tree: Path, tmp_path: Path) -> None:
    found = run(SAVES, patched_tree, usage=tmp_path / "usage")
    assert found["saved"] == {"alone": True, "FP8 scale": True, "MTP": True}
    assert not found["fault"] and found["whole though a tensor comes twice"]
    assert used(tmp_path / "usage", "partial-shards") == 2


def test_switched_off_shards_are_missing(patched_tree: Path, tmp_path: Path) -> None:
    found = run(SAVES, patched_tree, usage=tmp_path / "usage", NPU_RL_PARTIAL_SHARDS="0")
    assert found["saved"] == {"alone": True, "FP8 scale": False, "MTP": False}
    assert found["fault"] and found["whole though a tensor comes twice"]
    assert used(tmp_path / "usage", "partial-shards") == 0
