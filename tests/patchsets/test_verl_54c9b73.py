"""The patchset verl/54c9b73, held against the commit it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.standins import INJECTED
from tests.code_trees import archive
from tests.patchsets.conftest import Patched
from tests.support import git
from tests.weights.gloo_ranks import processes

RUNNER = Path(__file__).with_name("record_imports.py")
EXPERTS = Path(__file__).with_name("run_expert_checkpoint.py")
OPTIMIZER = Path(__file__).with_name("run_optimizer_resume.py")
PIN = "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
FILE = "verl/workers/megatron_workers.py"
PRELUDE = "verl_patches.prelude_patch"
MANAGER = "verl/utils/checkpoint/megatron_checkpoint_manager.py"


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


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_every_expert_is_in_a_checkpoint(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    """Four ranks, two expert groups: each loads what its group had. Upstream saves one group's file."""
    found = saved_and_loaded(EXPERTS, 4, upstreams, patched, tmp_path)
    assert [one.get("error") for one in found] == [None] * 4
    assert (
        sorted((one["group"], *one["loaded"]) for one in found) == [(0, 1.0, 7.0)] * 2 + [(1, 2.0, 7.0)] * 2
    )
    saved = tmp_path / "saved/model"
    names = {path.relative_to(saved).as_posix() for path in saved.glob("*/*")}
    assert names == {f"mp_rank_00_00{group}/model.pt" for group in (0, 1)}


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_a_run_goes_on_with_its_optimizer(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    """The fourth step after loading is the fourth step of a run that was never stopped, to the bit."""
    assert (
        saved_and_loaded(OPTIMIZER, 2, upstreams, patched, tmp_path) == [{"loaded": True, "equal": True}] * 2
    )


def saved_and_loaded(
    script: Path, ranks: int, upstreams: Path, patched: Patched, folder: Path
) -> list[dict[str, Any]]:
    """What each rank printed that ran a script on the patched verl and Megatron-core 0.8.0."""
    for needed in ("torch", "transformers"):
        pytest.importorskip(needed)
    code = archive(upstreams / "volcengine+verl" / "repo", PIN, "verl", folder / "code")
    archive(upstreams / "NVIDIA+Megatron-LM" / "repo", "refs/tags/core_r0.8.0", "megatron/core", code)
    (code / MANAGER).write_bytes(patched("verl/54c9b73", MANAGER, (code / MANAGER).read_bytes()))
    command = [sys.executable, "-W", "ignore", str(script), str(code / "verl"), str(folder / "saved")]
    done = processes(command, ranks, folder, [INJECTED, code], CUDA_VISIBLE_DEVICES="")
    assert [one.returncode for one in done] == [0] * ranks, done[0].stdout[-3000:]
    return [json.loads(one.stdout.strip().splitlines()[-1]) for one in done]
