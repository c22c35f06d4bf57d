"""Differences between the probabilities of rollout and actor over the steps of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.training_checks.engine_differences import (
    require_differences,
    require_update_as_reference,
)
from npu_rl.training.monitor.metrics import DIFFERENCE, Point


def points(*values: float) -> list[Point]:
    return [Point(step, 0.0, {DIFFERENCE: value}) for step, value in enumerate(values, 1)]


def test_a_training_without_differences_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NpuRlError, match="did not report the difference"):
        require_differences([Point(1, 0.0, {"actor/loss": 1.0})], tmp_path)


def test_a_difference_of_the_first_step_alone_says_nothing_of_the_others(tmp_path: Path) -> None:
    with pytest.raises(NpuRlError, match="stopped reporting the difference") as caught:
        require_differences([*points(0.0003), Point(2, 0.0, {}), Point(3, 0.0, {})], tmp_path)
    assert f"Only step 1 of 3 has {DIFFERENCE}" in str(caught.value)


# As measured: the rehearsals of deepseek-r1-zero (expert, pipeline) and of deepseek-v3-cann, and one step only.
@pytest.mark.parametrize(
    "values",
    [
        (0.00027, 0.00034, 0.0005, 0.00032, 0.00054, 0.00056, 0.00049, 0.00831, 0.01426, 0.00042, 0.00273),
        (0.00027, 0.00034, 0.00017, 0.00032, 0.00031, 0.0005, 0.01329, 0.00028, 0.0003, 0.00994, 0.01529),
        (0.0, 0.012, 0.001, 0.002, 0.001, 0.001, 0.001, 0.0, 0.001, 0.001, 0.0, 0.0, 0.017),
        (0.00027, 0.00831, 0.0004),
        (0.0004,),
    ],
)
def test_single_steps_in_which_rounding_chooses_another_expert_pass(
    values: tuple[float, ...], tmp_path: Path
) -> None:
    require_differences(points(*values), tmp_path)


def test_a_fault_that_begins_in_the_second_step_is_named(tmp_path: Path) -> None:
    """The scale of the rollout's softmax times 0.926 from the second generation on."""
    with pytest.raises(NpuRlError, match="different probabilities after the first step") as caught:
        require_differences(points(0.00027, 0.00363, 0.00653), tmp_path)
    assert "a median of 0.00363 in the 2 later steps (limit 0.002), and was 0.00027 in the first" in str(
        caught.value
    ).replace("\n", " ")


@pytest.mark.parametrize("wrong", [0.00055, -0.00055, float("nan")])
def test_an_update_that_computes_otherwise_shows_in_the_first_kl(tmp_path: Path, wrong: float) -> None:
    """As when the update's pass alone left out the temperature."""
    after = Point(2, 0.0, {"actor/kl_loss": 0.02})
    with pytest.raises(NpuRlError, match="The actor's update computes other probabilities") as caught:
        require_update_as_reference([Point(1, 0.0, {"actor/kl_loss": wrong}), after], tmp_path)
    assert f"actor/kl_loss is {wrong:.2g} in step 1 (limit 0.0003)" in str(caught.value)
    require_update_as_reference([Point(1, 0.0, {"actor/kl_loss": 1.2e-4}), after], tmp_path)
    require_update_as_reference([Point(1, 0.0, {"actor/loss": 1.0})], tmp_path)  # without a KL loss
    require_update_as_reference([], tmp_path)
