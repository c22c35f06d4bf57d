"""The metrics of a run: whole lines in a file, one curve of all attempts, and what the numbers mean."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.metrics import (
    MetricsWriter,
    Point,
    curve,
    phase_seconds,
    read_metrics,
    reward,
    rewards,
    seconds,
    throughput,
)


def test_each_line_is_json_that_any_reader_takes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {"a": 0.5, "b": math.nan, "c": -math.inf}, now=12.0)
        line = path.read_text()  # before it is closed
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert record == {"step": 1, "time": 12.0, "data": {"a": 0.5, "b": "nan", "c": "-inf"}}


@given(st.lists(st.dictionaries(st.text(max_size=5), st.floats(), max_size=4), max_size=5))
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        for number, data in enumerate(steps):
            writer.write(number, data)
    assert [repr(point.data) for point in read_metrics(path)] == [repr(data) for data in steps]


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    with MetricsWriter(path) as writer:
        for step in range(3):
            writer.write(step, {"a": float(step)})
    whole = path.read_bytes()
    for size in range(len(whole) - 30, len(whole)):
        path.write_bytes(whole[:size])
        assert [point.step for point in read_metrics(path)] in ([0, 1], [0, 1, 2])


# -- attempts ------------------------------------------------------------------------------------------


def attempt(run: Path, number: int, steps: dict[int, dict[str, float]]) -> None:
    folder = run / "attempts" / str(number)
    folder.mkdir(parents=True)
    with MetricsWriter(folder / "metrics.jsonl") as writer:
        for step, data in steps.items():
            writer.write(step, data)


FIRST = {step: {"r": step / 10} for step in range(1, 6)}


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        # step 5 is not in the model any more
        ({2: {3: {"r": 0.33}, 4: {"r": 0.44}}, 1: FIRST}, {**FIRST, 3: {"r": 0.33}, 4: {"r": 0.44}, 5: None}),
        # a validation at the step that it went on from keeps that step's numbers
        (
            {1: FIRST, 2: {5: {"val": 0.9}, 6: {"r": 0.6}}},
            {**FIRST, 5: {"r": 0.5, "val": 0.9}, 6: {"r": 0.6}},
        ),
        # a step that was trained again has the later numbers alone
        ({1: {1: {"r": 1.0, "only/here": 1.0}}, 2: {1: {"timing_s/step": 2.0}}}, {1: {"timing_s/step": 2.0}}),
        ({number: {1: {"r": float(number)}} for number in (10, 9, 2)}, {1: {"r": 10.0}}),
        ({}, {}),
    ],
)
def test_attempts_are_joined_in_the_order_of_their_numbers(
    tmp_path: Path,
    attempts: dict[int, dict[int, dict[str, float]]],
    expected: dict[int, dict[str, float] | None],
) -> None:
    for number, steps in attempts.items():
        attempt(tmp_path, number, steps)
    wanted = [(step, data) for step, data in expected.items() if data is not None]
    assert [(point.step, point.data) for point in curve(tmp_path)] == wanted


def test_what_the_numbers_mean() -> None:
    assert reward({"critic/rewards/mean": 2.0, "critic/score/mean": 1.0}) == 1.0
    assert reward({"critic/rewards/mean": 2.0}) == 2.0
    assert reward({"val-core/x/reward/mean@1": 2.0}) is None
    points = [
        Point(1, 0, {"critic/score/mean": math.nan}),
        Point(2, 0, {}),
        Point(3, 0, {"critic/score/mean": 0.5}),
    ]
    assert rewards(points) == [(3, 0.5)]
    data = {
        "timing_s/update_actor": 0.79,
        "timing_s/gen": 0.43,
        "timing_s/stop_profile": 0.1,
        "timing_s/step": 1.57,
    }
    assert list(phase_seconds(data).items()) == [("gen", 0.43), ("update_actor", 0.79)]
    assert (seconds(data), seconds({"perf/time_per_step": 2.0}), seconds({})) == (1.57, 2.0, None)
    assert throughput({"perf/throughput": 1051.39}, dies_per_card=2) == (1051.39, 2 * 1051.39)
    assert throughput({}) is None
