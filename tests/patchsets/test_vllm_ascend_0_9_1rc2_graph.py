"""The patch graph-parameters of patchset vllm-ascend/0.9.1rc2, and vllm-ascend's own layers under the offload."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

for needed in ("torch", "msgspec", "gguf", "blake3", "numba"):  # what vLLM's engine imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

GRAPH = WITNESSES / "graph_keeps_freed_weights.py"
DERIVED = Path(__file__).with_name("run_derived.py")
COMPONENTS = ["vllm", "vllm-ascend"]
FOLLOWS = {"fault": False, "follows": [True, True], "graphs": 1}
VERSION = {"VLLM_VERSION": "0.9.1"}  # vllm-ascend asks for it where vLLM has no _version.py
STALE = {"fault": True, "follows": [False, False], "graphs": 1}
MATRICES = ["attention.kv_b_proj.weight", "experts.w13_weight", "experts.w2_weight"]


def test_the_graph_follows_the_weights(upstreams: Path, patched_tree: Path, tmp_path: Path) -> None:
    """Upstream's goes on with the memory of the first run; ours reads the addresses anew, without a new capture."""
    before = tree(upstreams, tmp_path / "code", COMPONENTS, without="graph-parameters")
    assert run(GRAPH, before, **VERSION) == STALE
    usage = tmp_path / "usage"
    assert run(GRAPH, patched_tree, usage=usage, **VERSION) == FOLLOWS
    assert used(usage, "graph-parameters") == 1


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    assert run(GRAPH, patched_tree, usage=usage, NPU_RL_ROLLOUT_OFFLOAD="0", **VERSION) == STALE
    assert used(usage, "graph-parameters") == 0


def test_its_attention_and_experts_come_back(patched_tree: Path) -> None:
    """MLA's halves are the new weights'; the experts, half of which are another rank's, keep Parameters and layout."""
    found = run(DERIVED, patched_tree, **VERSION)
    assert found["upstream replaces"] == found["upstream loses"][1:] == MATRICES[1:]
    for one in found["rounds"]:
        assert one["freed"] == 4 * (24 * 16 + 2 * 12 * 12 + 2 * 12 * 6)
        assert one["asleep"] == [True, True, True]
        assert (one["unwritten"], one["left"]) == (MATRICES, [])
        assert one["same"] == dict.fromkeys(MATRICES, True)
        assert one["W_UK_T"] and one["W_UV"] and one["w13"] and one["w2"]
