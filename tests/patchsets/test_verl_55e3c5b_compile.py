"""The patch rollout-compile of patchset verl/55e3c5b: verl's own worker under MindSpeed's own patch manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree, used

pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = WITNESSES / "rollout_never_compiles.py"
COMPONENTS = ["verl", "Megatron-LM", "MindSpeed"]
RUNS = ["build", "known size", "new size", "MindSpeed patches again", "Megatron is imported"]
FAILS = {"an error": "RuntimeError", "an interrupt": "KeyboardInterrupt"}


@pytest.fixture(scope="module")
def steps(patched_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    usage = tmp_path_factory.mktemp("compile-usage") / "usage"
    found = run(RUNNER, patched_tree, usage=usage)
    assert not found["fault"]
    return found["steps"] | {"used": used(usage, "rollout-compile")}


@pytest.fixture(scope="module")
def upstreams_steps(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compile-upstream")
    found = run(RUNNER, tree(upstreams, folder / "code", COMPONENTS, without="rollout-compile"))
    assert found["fault"]
    steps: dict[str, Any] = found["steps"]
    return steps


def test_the_rollout_compiles(steps: dict[str, Any], upstreams_steps: dict[str, Any]) -> None:
    """Upstream's never does; patched, each size is a graph once, and MindSpeed patching meanwhile changes nothing."""
    assert [upstreams_steps[name]["true"] for name in RUNS] == [[False]] * 5
    assert [upstreams_steps[name]["graphs"] for name in RUNS] == [0] * 5
    assert [steps[name]["true"] for name in RUNS] == [[True]] * 5
    assert [steps[name]["graphs"] for name in RUNS] == [1, 0, 1, 1, 0]
    assert not any(steps[name]["error"] for name in RUNS)


def test_what_was_compiled_works_outside(steps: dict[str, Any]) -> None:
    """A graph for a shape that comes while torch.compile is MindSpeed's."""
    outside = steps["outside, new shape"]
    assert (outside["graphs"], outside["error"]) == (1, "")


def test_training_never_compiles(steps: dict[str, Any]) -> None:
    """After each step, failed or interrupted ones too, MindSpeed's function is what torch, Megatron and verl have."""
    assert {name: step["error"] for name, step in steps.items() if name in FAILS} == FAILS
    assert [steps[name]["true"] for name in FAILS] == [[True], [True]]
    assert steps["before"] is True
    assert all(step["after"] for step in steps.values() if isinstance(step, dict))
    assert steps["training"]["graphs"] == 0


def test_switched_off_it_is_upstream(
    patched_tree: Path, upstreams_steps: dict[str, Any], tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    found = run(RUNNER, patched_tree, usage=usage, NPU_RL_ROLLOUT_COMPILE="0")
    assert found["fault"] and found["steps"] == upstreams_steps
    assert used(usage, "rollout-compile") == 0


def test_its_hook_is_counted(steps: dict[str, Any]) -> None:
    """Once per call that ran with the true function, and once more where MindSpeed's patch had waited."""
    assert steps["used"] == len(RUNS) + len(FAILS) + 1
