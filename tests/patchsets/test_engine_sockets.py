"""The patch engine-sockets for verl 0.8 and 0.9: the weight sync of several data-parallel engines meets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

for needed in ("torch", "ray", "tensordict"):  # what verl's rollout imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "vllm"]
WITNESS = WITNESSES / "weight_sync_misses_engines.py"
SLUG = "engine-sockets"


@pytest.fixture(scope="module")
def code_of(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(
        lambda manifest: tree(
            upstreams, tmp_path_factory.mktemp("tree") / "code", COMPONENTS, manifest=manifest
        )
    )


@pytest.mark.parametrize("manifest", ["today", "newest"])
def test_every_sender_has_a_receiver(code_of: Callable[[str], Path], tmp_path: Path, manifest: str) -> None:
    found: dict[str, Any] = run(WITNESS, code_of(manifest), usage=tmp_path / "usage")
    assert found == {"fault": False, "senders": 8, "receivers": {"experts": 8, "dense": 8}}
    assert used(tmp_path / "usage", SLUG) == 8  # the ranks of each second engine


@pytest.mark.parametrize(("manifest", "experts"), [("today", 4), ("newest", 8)], ids=["today", "newest"])
def test_switched_off_it_is_upstream(
    code_of: Callable[[str], Path], tmp_path: Path, manifest: str, experts: int
) -> None:
    found: dict[str, Any] = run(
        WITNESS, code_of(manifest), usage=tmp_path / "usage", NPU_RL_ENGINE_SOCKETS="0"
    )
    assert found == {"fault": True, "senders": 8, "receivers": {"experts": experts, "dense": 4}}
    assert used(tmp_path / "usage", SLUG) == 0
