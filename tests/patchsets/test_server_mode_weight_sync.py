"""The patch weight-transfer-deadline for verl 0.8 and 0.9: verl's own transport, and one end that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

for needed in ("torch", "zmq"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = WITNESSES / "weight_sync_hangs.py"
STACKS = ["today", "newest"]


@pytest.mark.parametrize("manifest", STACKS)
def test_a_dead_receiver_is_an_error(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    """The sync before it, with the limit, brings what was sent: the runner compares it."""
    usage = tmp_path / "usage"
    found = run(
        RUNNER, tree(upstreams, tmp_path / "code", ["verl"], manifest=manifest), npu=False, usage=usage
    )
    assert not found["fault"]
    error = found["error"]
    assert error.startswith("TimeoutError: weight sync: vLLM's worker at ipc://"), error
    for part in ("did not send anything for 20 s", "NPU_RL_WEIGHT_TRANSFER_SECONDS"):
        assert part in error
    assert used(usage, "weight-transfer-deadline") == 4  # two syncs, two ends


@pytest.mark.parametrize("manifest", STACKS)
def test_switched_off_it_is_upstream(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    code = tree(upstreams, tmp_path / "code", ["verl"], manifest=manifest)
    found = run(RUNNER, code, npu=False, NPU_RL_WEIGHT_TRANSFER_DEADLINE="0")
    assert found == {"fault": True, "still waiting after seconds": 60}
