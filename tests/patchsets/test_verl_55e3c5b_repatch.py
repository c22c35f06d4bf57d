"""The patch repatch-required of patchset verl/55e3c5b: verl's own module, with a MindSpeed that imports and without."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.upstreams,
    pytest.mark.skipif(bool(importlib.util.find_spec("torch_npu")), reason="here MindSpeed would import"),
]

RUNNER = WITNESSES / "mindspeed_missing_unnoticed.py"
MEGATRON = ["verl", "Megatron-LM"]
COMPONENTS = [*MEGATRON, "MindSpeed"]
WITHOUT_MINDSPEED = {"fault": True, "repatch": None, "built": True}
REFUSES = "npu_rl_runtime.repatch_required.repatch"
NO_TORCH_NPU = ["ModuleNotFoundError", "No module named 'torch_npu'"]


@pytest.fixture(scope="module")
def unpatched_tree(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repatch-upstream") / "code"
    return tree(upstreams, folder, COMPONENTS, without="repatch-required")


def test_a_mindspeed_that_fails_is_an_error(patched_tree: Path, unpatched_tree: Path, tmp_path: Path) -> None:
    """torch_npu is missing. Upstream's worker goes on without MindSpeed. Patched, none is built; the module is imported
    as before, since the driver does that on a host which may have no torch_npu."""
    assert run(RUNNER, unpatched_tree, npu=False) == WITHOUT_MINDSPEED
    usage = tmp_path / "usage"
    found = run(RUNNER, patched_tree, npu=False, usage=usage)
    assert not found["fault"] and found["repatch"] == REFUSES and "built" not in found
    assert found["module"] == "torch_npu"
    assert found["cause"] == NO_TORCH_NPU
    for said in ("needs the module torch_npu", "npu-rl verify", "NPU_RL_REPATCH_REQUIRED=0"):
        assert said in found["error"]
    assert used(usage, "repatch-required") == 1


def test_a_tree_without_mindspeed_is_an_error(upstreams: Path, tmp_path: Path) -> None:
    bare = tree(upstreams, tmp_path / "bare", MEGATRON, patched=False)
    assert run(RUNNER, bare) == WITHOUT_MINDSPEED
    found = run(RUNNER, tree(upstreams, tmp_path / "patched", MEGATRON))
    assert found["module"] == "mindspeed"
    assert "no module mindspeed on the path" in found["error"]


def test_a_mindspeed_that_imports_is_taken(patched_tree: Path) -> None:
    found = run(RUNNER, patched_tree)
    assert found == {"fault": False, "repatch": "mindspeed.megatron_adaptor.repatch", "built": True}


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    found = run(RUNNER, patched_tree, npu=False, usage=usage, NPU_RL_REPATCH_REQUIRED="0")
    assert found == WITHOUT_MINDSPEED
    assert used(usage, "repatch-required") == 0
