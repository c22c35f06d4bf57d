"""The patches host-copies of three versions of verl: results are on the host before a worker returns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "tensordict", "ray"):  # what verl's DataProto imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/host_copies_not_awaited.py"
SLUG = "host-copies"
MANIFESTS = ("deepseek-r1-zero", "deepseek-v3-cann", "verl-npu-plugin")


@pytest.fixture(scope="module", params=MANIFESTS)
def code(request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host-copies") / "code"
    return tree(upstreams, folder, ["verl"], manifest=request.param)


def witness(code: Path, **named: Any) -> dict[str, Any]:
    found: dict[str, Any] = run(WITNESS, code, VLLM_VERSION="0.9.1", **named)
    return found


def test_copies_are_awaited(code: Path, tmp_path: Path) -> None:
    found = witness(code, usage=tmp_path / "usage")
    assert not found["fault"] and found["arrived"] == found["of"] == 8
    assert used(tmp_path / "usage", SLUG) == 2  # once for each copy of the witness


def test_switched_off_it_is_upstream(code: Path, tmp_path: Path) -> None:
    """Nothing has arrived, unless torch.cuda is torch.npu."""
    found = witness(code, usage=tmp_path / "usage", NPU_RL_HOST_COPIES="0")
    assert found["fault"] and found["arrived"] == 0
    assert found["arrived with transfer_to_npu"] == 8
    assert used(tmp_path / "usage", SLUG) == 0
