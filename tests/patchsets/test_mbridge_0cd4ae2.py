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


@pytest.mark.parametrize("blocks", ["3,3", "4,2", "2,2", "3,1"])
def test_a_scale_of_another_shape_is_refused(patched_tree: Path, blocks: str) -> None:
    """The weight is 300 x 200: 3 x 2 blocks of 128 x 128."""
    found = run(READS, patched_tree, str(ROOT / "npu_rl/weights/tensors"), blocks, npu=False)
    wrong = blocks.replace(",", ", ")
    assert found["error"].startswith(f"layer.0.weight_scale_inv: shape [{wrong}] instead of [3, 2]"), found


def test_switched_off_fp8_wants_cuda(patched_tree: Path) -> None:
    found = run(READS, patched_tree, str(ROOT / "npu_rl/weights/tensors"), npu=False, NPU_RL_FP8_READER="0")
    assert "CUDA" in found["error"]


YARN = {"Qwen3MoEBridge": 50000.0, "DeepseekV3Bridge": 50000.0, "YaRN": ["yarn", 40.0]}


def test_every_layout_of_rope_is_read(patched_tree: Path, tmp_path: Path) -> None:
    """Of transformers 4, of transformers 5, and of a checkpoint's own class with transformers 5."""
    found = run(ROPE, patched_tree, usage=tmp_path / "usage")
    assert found == {"fault": False, "read": {"4": YARN, "5": YARN, "5, the checkpoint's class": YARN}}
    assert used(tmp_path / "usage", "rope-layout") == 5


def test_switched_off_the_layouts_of_transformers_5_are_lost(patched_tree: Path) -> None:
    found = run(ROPE, patched_tree, NPU_RL_ROPE_LAYOUT="0")
    lost = {"Qwen3MoEBridge": None, "DeepseekV3Bridge": None}
    layouts = {"4": YARN, "5": lost, "5, the checkpoint's class": {**YARN, "YaRN": ["rope", 1]}}
    assert found == {"fault": True, "read": layouts}


ALL = {"alone": True, "FP8 scale": True, "MTP": True}


def test_every_tensor_of_the_run_is_saved(patched_tree: Path, tmp_path: Path) -> None:
    found = run(SAVES, patched_tree, usage=tmp_path / "usage")
    assert found["usual"] == {"saved": ALL, "other files": 0, "error": None}
    assert not found["fault"] and found["whole though a tensor comes twice"]
    assert used(tmp_path / "usage", "partial-shards") == 3  # two shards at the end, and one set of shards


def test_every_tensor_is_saved_with_less_memory(patched_tree: Path) -> None:
    found = run(SAVES, patched_tree)
    assert found["memory_efficient"] == {"saved": ALL, "other files": 0, "error": None}


def test_switched_off_shards_are_missing(patched_tree: Path, tmp_path: Path) -> None:
    found = run(SAVES, patched_tree, usage=tmp_path / "usage", NPU_RL_PARTIAL_SHARDS="0")
    alone = {"alone": True, "FP8 scale": False, "MTP": False}
    assert found["usual"] == {"saved": alone, "other files": 0, "error": None}
    assert found["memory_efficient"]["saved"] == alone
    assert found["memory_efficient"]["error"] == "FileNotFoundError"
    assert found["memory_efficient"]["other files"] > 0
    assert found["fault"] and found["whole though a tensor comes twice"]
    assert used(tmp_path / "usage", "partial-shards") == 0
