"""The patch router-bias of patchset verl/7aed6b2: the bias's way through a weight sync to vllm-ascend's selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, used
from tests.support import ROOT

for needed in ("torch", "ray", "tensordict"):  # what verl's rollout imports
    pytest.importorskip(needed)

from tests.patchsets.run_router_choices import require_none_worse  # noqa: E402

pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "vllm", "vllm-ascend"]
MANIFEST = "today"
WITNESS = WITNESSES / "router_bias_rounded_to_logits.py"
SLUG = "router-bias"
APART = "tokens with other experts"


def test_the_rollout_chooses_by_the_bias(patched_tree: Path, tmp_path: Path) -> None:
    """What is left is the rounding of a bias in [0, 0.1] to bfloat16."""
    found: dict[str, Any] = run(WITNESS, patched_tree, usage=tmp_path / "usage")
    assert not found["fault"] and found[APART] < 0.03
    assert used(tmp_path / "usage", SLUG) == 1


def test_switched_off_it_is_upstream(patched_tree: Path, tmp_path: Path) -> None:
    found: dict[str, Any] = run(WITNESS, patched_tree, usage=tmp_path / "usage", NPU_RL_ROUTER_BIAS="0")
    assert found["fault"] and found[APART] > 0.5
    assert used(tmp_path / "usage", SLUG) == 0


def test_no_biases_are_routed_worse_than_upstream(patched_tree: Path) -> None:
    """By vllm-ascend's own selection, which it uses without its kernel: groups that are left out have the score 0."""
    require_none_worse(run(ROOT / "tests/patchsets/run_router_choices.py", patched_tree, "vllm-ascend"))
