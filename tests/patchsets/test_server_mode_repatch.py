"""The patch repatch-required for verl 0.8 and 0.9: the NPU's engine `megatron`, with a MindSpeed and without."""

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

RUNNER = WITNESSES / "mindspeed_engine_missing_unnoticed.py"
COMPONENTS = ["verl", "Megatron-LM", "MindSpeed"]
REACHED = ["process groups"]
WITHOUT_MINDSPEED = {"fault": True, "repatch": None, "reached": REACHED}
STACKS = ["today", "newest"]


@pytest.mark.parametrize("manifest", STACKS)
def test_a_mindspeed_that_fails_is_an_error(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    """torch_npu is missing. Upstream's engine goes on without MindSpeed; patched, it ends before its process groups."""
    before = tree(upstreams, tmp_path / "before", COMPONENTS, patched=False, manifest=manifest)
    assert run(RUNNER, before, npu=False) == WITHOUT_MINDSPEED
    usage = tmp_path / "usage"
    found = run(
        RUNNER, tree(upstreams, tmp_path / "after", COMPONENTS, manifest=manifest), npu=False, usage=usage
    )
    assert not found["fault"] and found["reached"] == []
    assert found["repatch"] == "npu_rl_runtime.repatch_required.repatch"
    assert found["module"] == "torch_npu"
    assert found["cause"] == ["ModuleNotFoundError", "No module named 'torch_npu'"]
    for part in ("needs the module torch_npu", "npu-rl verify", "NPU_RL_REPATCH_REQUIRED=0"):
        assert part in found["error"]
    assert used(usage, "repatch-required") == 1


@pytest.mark.parametrize("manifest", STACKS)
def test_a_mindspeed_that_imports_is_taken(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    """Its import needs Triton, which a CPU lacks: its own module is replaced by one that has the name."""
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest=manifest)
    (code / "mindspeed" / "megatron_adaptor.py").write_text("def repatch(args): ...\n")
    found = run(RUNNER, code, npu=False)
    assert found == {"fault": False, "repatch": "mindspeed.megatron_adaptor.repatch", "reached": REACHED}


@pytest.mark.parametrize("manifest", STACKS)
def test_switched_off_it_is_upstream(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    usage = tmp_path / "usage"
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest=manifest)
    assert run(RUNNER, code, npu=False, usage=usage, NPU_RL_REPATCH_REQUIRED="0") == WITHOUT_MINDSPEED
    assert used(usage, "repatch-required") == 0
