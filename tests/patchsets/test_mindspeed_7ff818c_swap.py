"""The patch swapped-states of patchset MindSpeed/7ff818c: a swapped optimizer is saved, and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import run, used
from tests.support import ROOT

for needed in ("torch", "transformers"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["Megatron-LM", "MindSpeed"]
WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/swapped_optimizer_not_saved.py"
SLUG = "swapped-states"


def test_a_resumed_run_goes_on_as_the_first(patched_tree: Path, tmp_path: Path) -> None:
    found = run(WITNESS, patched_tree, usage=tmp_path / "usage")
    assert found == {"fault": False, "ranks": [{"loaded": True, "equal": True}] * 2}
    assert used(tmp_path / "usage", SLUG) == 6  # on two ranks: the save, the load's targets, the load


def test_switched_off_the_first_save_dies(patched_tree: Path, tmp_path: Path) -> None:
    found = run(WITNESS, patched_tree, usage=tmp_path / "usage", NPU_RL_SWAPPED_STATES="0")
    assert found["fault"]
    assert found["ranks"][0]["error"] == "'NoneType' object has no attribute 'dtype'"
    assert used(tmp_path / "usage", SLUG) == 0
