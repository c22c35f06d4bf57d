"""The patchset Megatron-LM/4af25fe: what Pai-Megatron-Patch's document asks to edit in Megatron-LM-250908."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.patchsets.conftest import Patched
from tests.support import byte_code

pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = WITNESSES / "mla_down_projections_duplicated.py"
PATCHSET = "Megatron-LM/4af25fe"
FILE = "megatron/core/models/gpt/gpt_layer_specs.py"
EDITED = ("linear_q_down_proj", "linear_kv_down_proj")


def pin(manifest: str) -> str:
    """The commit of the Megatron-LM that a manifest takes, as its lock has it."""
    lock = lock_model.read(lock_model.lock_path(load_manifest(manifest).path))
    submodules = lock.components["Pai-Megatron-Patch"].submodules
    (found,) = [one.pin for one in submodules if "Megatron-LM" in one.path]
    return found


PINS = {
    "250624": pin("pai-megatron-deepseek-v3"),
    "250908": pin("pai-megatron-deepseek-v3-mcore-250908"),
}


def projections(upstreams: Path, code: Path, commit: str, patched: Patched | None = None) -> dict[str, str]:
    packed = subprocess.run(
        ["git", f"--git-dir={upstreams / 'NVIDIA+Megatron-LM' / 'repo'}", "archive", commit, "megatron/core"],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(code, filter="data")
    if patched:
        (code / FILE).write_bytes(patched(PATCHSET, FILE, (code / FILE).read_bytes()))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUNNER)],
        env={"PYTHONPATH": str(code), "CUDA_VISIBLE_DEVICES": "", **byte_code()},
        capture_output=True, text=True, check=False, cwd=code,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    classes: dict[str, str] = found["projections"]
    assert found["fault"] is (classes["linear_kv_down_proj"] == "TELinear")
    return classes


def test_the_down_projections_are_split(upstreams: Path, tmp_path: Path, patched: Patched) -> None:
    """As the scripts' own Megatron-LM has them; without the edit every tensor-parallel rank has whole ones."""
    as_run = projections(upstreams, tmp_path / "250624", PINS["250624"])
    upstream = projections(upstreams, tmp_path / "250908", PINS["250908"])
    edited = projections(upstreams, tmp_path / "edited", PINS["250908"], patched)
    assert {upstream[name] for name in EDITED} == {"TELinear"}
    assert {as_run[name] for name in EDITED} == {"TEColumnParallelLinear"}
    assert edited == as_run
