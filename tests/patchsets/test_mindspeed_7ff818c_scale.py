"""The patch attention-scale of patchset MindSpeed/7ff818c: MindSpeed's own flash attention, patched and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = WITNESSES / "attention_scale_ignored.py"
COMPONENTS = ["MindSpeed", "Megatron-LM"]


def test_the_scale_is_the_one_asked_for(upstreams: Path, patched_tree: Path, tmp_path: Path) -> None:
    """Upstream, the scores are scaled by kv_channels whatever is asked for."""
    before = run(RUNNER, tree(upstreams, tmp_path / "code", COMPONENTS, without="attention-scale"))
    assert before["fault"] and before["off"] > 0.01 and before["off from the other"] < 1e-5
    usage = tmp_path / "usage"
    after = run(RUNNER, patched_tree, usage=usage)
    assert not after["fault"] and after["off"] < 1e-5 and after["off from the other"] > 0.01
    assert used(usage, "attention-scale") == 1


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    found = run(RUNNER, patched_tree, usage=usage, NPU_RL_ATTENTION_SCALE="0")
    assert found["fault"] and found["off"] > 0.01 and found["off from the other"] < 1e-5
    assert used(usage, "attention-scale") == 0
