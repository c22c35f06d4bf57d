"""The steps that a training does twice, before its stop and after its resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.training_checks.interrupted_training import (
    GLOO_TOLERANCE,
    compare_steps,
    train_interrupted,
)
from npu_rl.training.monitor.metrics import MetricsWriter, Point
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.run_record import RunRecord


def points(*values: float, first: int = 1, name: str = "actor/grad_norm") -> list[Point]:
    return [
        Point(step, 0.0, {name: value, "timing_s/gen": float(step), "perf/mfu": value * 3})
        for step, value in enumerate(values, first)
    ]


def test_equal_steps_are_told_and_the_clocks_metrics_left_out(tmp_path: Path) -> None:
    found = compare_steps(points(1, 2, 3, 4, 5), points(4, 5, 6, first=4), 3, 0.0, tmp_path)
    assert (found.steps, found.metrics, found.difference) == ((4, 5), 2, 0.0)
    assert found.line() == "resumed from step 3: 2 metrics of steps 4 and 5, trained twice, are equal"


@pytest.mark.parametrize(
    ("after", "tolerance"), [(4 + 1e-6, 0.0), (4 + 1e-4, GLOO_TOLERANCE), (float("nan"), 1.0)]
)
def test_a_metric_that_differs_is_named_with_both_values(
    tmp_path: Path, after: float, tolerance: float
) -> None:
    with pytest.raises(NpuRlError, match="The training differs after a resume from step 3") as caught:
        compare_steps(points(1, 2, 3, 4, 5), points(after, 5, first=4), 3, tolerance, tmp_path)
    assert "step 4: actor/grad_norm is " in str(caught.value) and "after the resume, and was 4" in str(
        caught.value
    )


def test_several_ranks_may_differ_by_the_order_of_a_sum(tmp_path: Path) -> None:
    found = compare_steps(points(1, 2, 3, 4, 5), points(4 + 2e-6, 5, first=4), 3, GLOO_TOLERANCE, tmp_path)
    assert 0 < found.difference < GLOO_TOLERANCE and found.line().endswith("are within 5e-07")


@pytest.mark.parametrize(("before", "after"), [(1e-6, 1e-7), (3e-7, -3e-7), (8e-7, 0.0)])
def test_small_metrics_are_compared_by_their_size(tmp_path: Path, before: float, after: float) -> None:
    """A learning rate is far below what gloo's order of sums may change in a metric near 1."""
    with pytest.raises(NpuRlError, match="differs after a resume"):
        compare_steps(points(before, 5), points(after, 5), 0, GLOO_TOLERANCE, tmp_path)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("after", "step 4: val/reward is missing after the resume, and was 0.5"),
        ("before", "step 4: val/reward is 0.5 after the resume, and was missing"),
    ],
)
def test_a_metric_of_one_attempt_only_is_named(tmp_path: Path, lost: str, said: str) -> None:
    """A resumed training that no longer validates, or has lost its reference, reports less."""
    attempts = {"before": points(1, 2, 3, 4, 5), "after": points(4, 5, first=4)}
    for name, found in attempts.items():
        if name != lost:
            next(point for point in found if point.step == 4).data["val/reward"] = 0.5
    with pytest.raises(NpuRlError, match="differs after a resume") as caught:
        compare_steps(attempts["before"], attempts["after"], 3, 0.0, tmp_path)
    assert said in str(caught.value)


def test_a_training_that_never_validated_is_an_error(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {}, lock=b"{}")
    asked: list[tuple[bool, int | None]] = []

    def attempt(resume: bool, stop_after: int | None) -> None:
        asked.append((resume, stop_after))
        begun: Attempt = record.begin_attempt(["true"], {}, {}, "")
        with MetricsWriter(begun.metrics) as writer:
            for point in points(4, 5, first=4) if resume else points(1, 2, 3, 4, 5):
                writer.write(point.step, point.data)
        begun.close("stopped", 0)

    with pytest.raises(NpuRlError, match="The trainer did not validate"):
        train_interrupted(record, 3, 1, attempt)
    assert asked == [(False, 5), (True, None)]


@pytest.mark.parametrize(("after", "said"), [(4.5, "The training differs"), (4, "below the goal")])
def test_a_difference_is_named_before_what_it_led_to(tmp_path: Path, after: float, said: str) -> None:
    record = RunRecord.create(tmp_path, "demo", {}, lock=b"{}")

    def attempt(resume: bool, stop_after: int | None) -> None:
        begun: Attempt = record.begin_attempt(["true"], {}, {}, "")
        with MetricsWriter(begun.metrics) as writer:
            writer.write(4, {"val/reward": 1.0})
            for point in points(after, 5, first=4) if resume else points(1, 2, 3, 4, 5):
                writer.write(point.step, point.data)
        begun.close("stopped", 0)
        if resume:
            raise NpuRlError("The mean reward is below the goal")

    with pytest.raises(NpuRlError, match=said):
        train_interrupted(record, 3, 1, attempt)
