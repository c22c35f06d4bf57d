"""The patch deepscaler-reward of the patchsets for verl 0.8 and 0.9: upstream's own function, patched and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import tree
from tests.patchsets.test_verl_55e3c5b_reward import DEEPSCALER, NO_SUCH, OTHERS, run

pytestmark = pytest.mark.upstreams
STACKS = ["today", "newest"]


@pytest.mark.parametrize("manifest", STACKS)
def test_answers_are_scored(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    """Upstream knows no such data source; with the patch the last box counts. Other sources are as before."""
    before = tree(upstreams, tmp_path / "before", ["verl"], patched=False, manifest=manifest)
    after = tree(upstreams, tmp_path / "after", ["verl"], manifest=manifest)
    unknown = run(before, DEEPSCALER + OTHERS)
    assert unknown[: len(DEEPSCALER)] == [NO_SUCH] * 4
    found = run(after, DEEPSCALER + OTHERS)
    assert found[: len(DEEPSCALER)] == [1.0, 0.0, 0.0, 0.0]
    assert found[len(DEEPSCALER) :] == unknown[len(DEEPSCALER) :]


@pytest.mark.parametrize("manifest", STACKS)
def test_switched_off_it_is_upstream(upstreams: Path, tmp_path: Path, manifest: str) -> None:
    after = tree(upstreams, tmp_path / "after", ["verl"], manifest=manifest)
    assert run(after, DEEPSCALER, NPU_RL_DEEPSCALER_REWARD="0") == [NO_SUCH] * 4
    assert run(after, DEEPSCALER[:1], NPU_RL_DEEPSCALER_REWARD="1") == [1.0]
