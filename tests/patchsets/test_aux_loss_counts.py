"""The patches aux-loss-counts: the router's auxiliary loss has the gradient of DeepSeek-V3's report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "einops"):  # the second by MindSpeed-LLM's router
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESSES = ROOT / "npu_rl/recipes/faults/witnesses"
SLUG = "aux-loss-counts"
SCRIPTS = {"deepseek-r1-zero": "aux_loss_counts_chosen.py", "deepseek-v3-cann": "aux_loss_adds_bias.py"}
COMPONENTS = {
    "deepseek-r1-zero": ["Megatron-LM"],
    "deepseek-v3-cann": ["Megatron-LM", "MindSpeed", "MindSpeed-LLM"],
}


@pytest.fixture(scope="module", params=SCRIPTS)
def laid(
    request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A script and the tree that it runs on."""
    folder = tmp_path_factory.mktemp(SLUG) / "code"
    code = tree(upstreams, folder, COMPONENTS[request.param], manifest=request.param)
    return WITNESSES / SCRIPTS[request.param], code


def figures(found: dict[str, Any]) -> list[tuple[float, float]]:
    """Cosine and relative size of the gradient at each bias; the size is not looked at everywhere."""
    (at_each,) = (value for key, value in found.items() if key != "fault")
    return [(one["cosine"], one["size"]) if isinstance(one, dict) else (one, 1.0) for one in at_each.values()]


def test_the_loss_is_the_reports(laid: tuple[Path, Path], tmp_path: Path) -> None:
    found = run(*laid, usage=tmp_path / "usage")
    assert not found["fault"]
    assert figures(found) == [(1.0, 1.0)] * 3
    assert used(tmp_path / "usage", SLUG) == 3


def test_switched_off_it_is_upstream(laid: tuple[Path, Path], tmp_path: Path) -> None:
    found = run(*laid, usage=tmp_path / "usage", NPU_RL_AUX_LOSS_COUNTS="0")
    assert found["fault"]
    assert [round(cosine, 1) for cosine, _ in figures(found)][:2] == [0.8, 0.3]
    assert used(tmp_path / "usage", SLUG) == 0
