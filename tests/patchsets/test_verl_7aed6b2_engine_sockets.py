"""The patch engine-sockets of patchset verl/7aed6b2: the weight sync of several data-parallel engines meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, used

for needed in ("torch", "ray", "tensordict"):  # what verl's rollout imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "vllm"]  # Of vLLM its version is asked for, from its dist-info.
MANIFEST = "today"
WITNESS = WITNESSES / "weight_sync_misses_engines.py"
SLUG = "engine-sockets"


def test_every_sender_has_a_receiver(patched_tree: Path, tmp_path: Path) -> None:
    found: dict[str, Any] = run(WITNESS, patched_tree, usage=tmp_path / "usage")
    assert found == {"fault": False, "senders": 4, "receivers": 4}
    assert used(tmp_path / "usage", SLUG) == 4


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    found: dict[str, Any] = run(WITNESS, patched_tree, usage=tmp_path / "usage", NPU_RL_ENGINE_SOCKETS="0")
    assert found == {"fault": True, "senders": 4, "receivers": 2}
    assert used(tmp_path / "usage", SLUG) == 0
