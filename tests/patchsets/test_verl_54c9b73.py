"""The patchset verl/54c9b73, held against the commit it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patchsets.conftest import Patched
from tests.patchsets.flagship_tree import run, tree
from tests.support import ROOT, git

RUNNER = Path(__file__).with_name("record_imports.py")
WITNESSES = ROOT / "npu_rl" / "recipes" / "faults" / "witnesses"
EXPERTS = WITNESSES / "expert_checkpoint_loses_experts.py"
OPTIMIZER = WITNESSES / "optimizer_step_not_restored.py"
PIN = "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
FILE = "verl/workers/megatron_workers.py"
PRELUDE = "verl_patches.prelude_patch"


def imports(path: Path, content: str) -> list[str]:
    """What running the whole file imports, in order. An error while it runs fails the test."""
    path.write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(RUNNER), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "ActorRolloutRefWorker" in found["classes"]
    asked: list[str] = found["asked"]
    return asked


@pytest.mark.upstreams
def test_the_prelude_comes_first(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    """The recipe's prelude replaces what an NPU host lacks; that is too late once torch is imported."""
    content = git("cat-file", "blob", f"{PIN}:{FILE}", git_dir=upstreams / "volcengine+verl" / "repo") + "\n"
    before = imports(tmp_path / "before.py", content)
    assert PRELUDE not in before
    assert before[0] == "torch"
    after = imports(tmp_path / "after.py", patched("verl/54c9b73", FILE, content.encode()).decode())
    assert after[:3] == ["verl_patches", PRELUDE, "torch"]
    assert after[2:] == before


@pytest.fixture(scope="module")
def code(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("torch", "transformers"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("verl") / "code"
    return tree(upstreams, folder, ["verl", "Megatron-LM", "MindSpeed"], manifest="deepseek-v3-cann")


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_every_expert_is_in_a_checkpoint(code: Path) -> None:
    """Four ranks, two expert groups: each loads what its group had."""
    found = run(EXPERTS, code)
    assert found["fault"] is False, found
    assert sorted((one["group"], *one["loaded"]) for one in found["ranks"]) == [
        (0, 1.0, 7.0), (0, 1.0, 7.0), (1, 2.0, 7.0), (1, 2.0, 7.0),
    ]  # fmt: skip
    assert found["files"] == ["mp_rank_00_000", "mp_rank_00_001"]


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_switched_off_one_experts_group_is_saved(code: Path) -> None:
    found = run(EXPERTS, code, NPU_RL_EXPERT_CHECKPOINT="0")
    assert found["fault"] is True and found["files"] == ["mp_rank_00_000"]
    assert sorted((one["group"], one["loaded"] is None) for one in found["ranks"]) == [
        (0, False), (0, False), (1, True), (1, True),
    ]  # fmt: skip


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_a_run_goes_on_with_its_optimizer(code: Path) -> None:
    """The fourth step after loading is the fourth step of a run that was never stopped, to the bit, with both."""
    found = run(OPTIMIZER, code)
    assert found["fault"] is False, found
    for kind in ("plain", "swap"):
        for one in found[kind]:
            assert one["loaded"] and one["equal"] and one["moved"][0] == one["moved"][1] > 0


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_switched_off_the_optimizer_is_not_restored(code: Path) -> None:
    """As upstream: without swap loading ends; with it the update is that of a first step, 1.7 times as large."""
    found = run(OPTIMIZER, code, NPU_RL_OPTIMIZER_RESUME="0")
    assert found["fault"] is True
    assert found["plain"] == [{"error": "KeyError('exp_avg')"}] * 2
    for one in found["swap"]:
        assert one["loaded"] and not one["equal"]
        assert 1.6 < one["moved"][1] / one["moved"][0] < 1.8
