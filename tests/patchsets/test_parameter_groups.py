"""The patches parameter-groups: after a resume each pipeline stage decays the parameters that it did before."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.patchsets.conftest import Patched
from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "transformers"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/weight_decay_by_number.py"
SLUG = "parameter-groups"
DECAYS = {"matrix": 0.01, "norm": 0.0}


PAI = "pai-megatron-deepseek-v3"


@pytest.fixture(scope="module", params=["deepseek-r1-zero", PAI])
def code(
    request: pytest.FixtureRequest,
    upstreams: Path,
    tmp_path_factory: pytest.TempPathFactory,
    patched: Patched,
) -> Path:
    folder = tmp_path_factory.mktemp(SLUG) / "code"
    if request.param != PAI:
        return tree(upstreams, folder, ["Megatron-LM"], manifest=request.param)
    code = tree(upstreams, folder, [], manifest=PAI)
    lock = lock_model.read(lock_model.lock_path(load_manifest(PAI).path))
    (pin,) = [
        one.pin
        for one in lock.components["Pai-Megatron-Patch"].submodules
        if one.path.endswith("Megatron-LM-250624")
    ]
    repository = upstreams / "NVIDIA+Megatron-LM" / "repo"
    packed = subprocess.run(
        ["git", f"--git-dir={repository}", "archive", pin, "megatron/core"],
        stdout=subprocess.PIPE,
        check=True,
    )
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(code, filter="data")
    file = "megatron/core/optimizer/distrib_optimizer.py"
    (code / file).write_bytes(patched(f"Megatron-LM/{pin[:7]}", file, (code / file).read_bytes()))
    return code


def test_a_resumed_stage_decays_what_it_did(code: Path, tmp_path: Path) -> None:
    found = run(WITNESS, code, npu=False, usage=tmp_path / "usage")
    assert not found["fault"]
    assert found["stages"] == [{"saved": DECAYS, "resumed": DECAYS}] * 2
    assert used(tmp_path / "usage", SLUG) == 1  # the second stage's; the first has rank 0's order


def test_switched_off_it_is_upstream(code: Path, tmp_path: Path) -> None:
    found = run(WITNESS, code, npu=False, usage=tmp_path / "usage", NPU_RL_PARAMETER_GROUPS="0")
    assert found["fault"]
    first, second = found["stages"]
    assert first["resumed"] == DECAYS and second == {
        "saved": DECAYS,
        "resumed": {"matrix": 0.0, "norm": 0.01},
    }
    assert used(tmp_path / "usage", SLUG) == 0
