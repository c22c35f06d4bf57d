"""The patch engine-sockets of patchset verl/7aed6b2: the weight sync of several data-parallel engines meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "ray", "tensordict"):  # what verl's rollout imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = WITNESSES / "weight_sync_misses_engines.py"


def test_every_sender_has_a_receiver(upstreams: Path, tmp_path: Path) -> None:
    # Of vLLM its version is asked for, from its dist-info.
    code = tree(upstreams, tmp_path / "code", ["verl", "vllm"], manifest="today")
    found: dict[str, Any] = run(WITNESS, code)
    assert found == {"fault": False, "senders": 4, "receivers": 4}
