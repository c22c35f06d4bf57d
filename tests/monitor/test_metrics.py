"""verl's console lines become numbers, and the numbers of all attempts one curve."""

from __future__ import annotations

import json
import math
import os
import pprint
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.metrics import (
    MetricsWriter,
    Point,
    curve,
    generated_batches,
    parse_line,
    phase_seconds,
    read_metrics,
    reward,
    rewards,
    seconds,
    throughput,
)
from tests.training.processes import FORKS

FULL = (
    "\x1b[36m(TaskRunner pid=12202)\x1b[0m step:12 - global_seqlen/min:1654 - actor/pg_loss:-9.373311016247499e-09 - "
    "actor/grad_norm:0.3295905590057373 - training/global_step:12 - critic/score/mean:0.0056984033435583115 - "
    "critic/rewards/mean:0.006 - response_length/mean:15.84375 - timing_s/gen:0.4251369410000052 - "
    "timing_s/reward:0.005 - timing_s/old_log_prob:0.22 - timing_s/ref:0.13 - timing_s/adv:0.002 - "
    "timing_s/update_actor:0.79 - timing_s/step:1.573 - timing_s/stop_profile:2.374000018789957e-06 - "
    "perf/throughput:1051.39"
)
KEYS = st.text(alphabet="abcxyz/_@0123-. ", min_size=1, max_size=20).filter(
    lambda key: key == key.strip() and " - " not in f" {key} "
)


def test_a_line_as_verl_and_ray_print_it() -> None:
    found = parse_line(FULL)
    assert found is not None
    step, data = found
    assert step == 12
    assert len(data) == 16
    assert data["actor/pg_loss"] == -9.373311016247499e-09
    assert data["critic/score/mean"] == 0.0056984033435583115
    assert data["timing_s/stop_profile"] == 2.374000018789957e-06


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "(TaskRunner pid=1) ",
        "(TaskRunner pid=1, ip=10.0.0.2) ",
        "\x1b[36m(main_task pid=1)\x1b[0m ",
        "(EngineCore_DP0 pid=7) (TaskRunner pid=1, ip=10.0.0.2) ",
        "Training Progress:  20%|##  | 1/5 [00:03<00:12,  3.1s/it] ",
    ],
)
def test_whatever_stands_before_it(prefix: str) -> None:
    assert parse_line(f"{prefix}step:3 - a/b:1.5 - c:2") == (3, {"a/b": 1.5, "c": 2.0})


def test_every_way_to_write_a_number() -> None:
    line = (
        "step:0 - a:np.float64(0.25) - b:nan - c:-inf - d:1e-06 - e:-3 - f:0.000 - g:True - h:np.float32(nan) - "
        "i:tensor(2.) - j:.5 - k:1E+3 - l:inf [repeated 2x across cluster]"
    )
    found = parse_line(line)
    assert found is not None
    data = found[1]
    assert math.isnan(data.pop("b"))
    assert math.isnan(data.pop("h"))
    assert data == {
        **{"a": 0.25, "c": -math.inf, "d": 1e-06, "e": -3.0, "f": 0.0, "g": 1.0},
        **{"i": 2.0, "j": 0.5, "k": 1000.0, "l": math.inf},
    }


def test_what_is_no_number_is_left_out() -> None:
    assert parse_line("step:1 - a:fast - b:1_000 - c: - :5 - d:0x10 - e:٣ - f:1") == (1, {"f": 1.0})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step:5",
        "step:5 - ",
        "step:five - a:1",
        "global_step:5 - a:1",
        "training/step:5 - a:1",
        "timing_s/step:2 - a:1",
        "local_global_step_folder: /x/global_step_6 - a:1",
        "step:1 - nothing here",
        "step:" + "9" * 5000 + " - a:1",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_line(line) is None


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    for line in (text, f"step:1 - {text}", f"(T pid=1) step:1 - a:{text}", f"step:{text} - a:1"):
        found = parse_line(line)
        assert found is None or (found[0] >= 0 and found[1])


@given(
    st.integers(min_value=0, max_value=10**12),
    st.dictionaries(KEYS, st.floats() | st.integers(-(10**18), 10**18), min_size=1, max_size=8),
)
def test_what_verl_prints_is_what_is_read(step: int, data: dict[str, float]) -> None:
    line = " - ".join([f"step:{step}", *(f"{key}:{pprint.pformat(value)}" for key, value in data.items())])
    found = parse_line(f"\x1b[36m(TaskRunner pid=1)\x1b[0m {line}")
    assert found is not None
    assert found[0] == step
    assert {k: repr(v) for k, v in found[1].items()} == {k: repr(float(v)) for k, v in data.items()}


# -- the file ------------------------------------------------------------------------------------------


def test_each_line_is_json_that_any_reader_takes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {"a": 0.5, "b": math.nan, "c": -math.inf}, now=12.0)
        line = path.read_text()  # before it is closed
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert record == {"step": 1, "time": 12.0, "data": {"a": 0.5, "b": "nan", "c": "-inf"}}
    (point,) = read_metrics(path)
    assert (point.step, point.time, point.data["a"], point.data["c"]) == (1, 12.0, 0.5, -math.inf)
    assert math.isnan(point.data["b"])


@given(st.lists(st.dictionaries(st.text(max_size=5), st.floats(), max_size=4), max_size=5))
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        for number, data in enumerate(steps):
            writer.write(number, data)
    assert [repr(point.data) for point in read_metrics(path)] == [repr(data) for data in steps]


def test_a_torn_last_line_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {"a": 1.0})
        writer.write(2, {"a": 2.0})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with MetricsWriter(path) as writer:
            writer.write(9, {"a": 9.0})
        steps = [point.step for point in read_metrics(path)]
        assert steps == [s for s in (1, 2) if s in steps] + [9]
        assert (1 in steps) == (size >= whole.index(b"\n"))


def write_and_die(path: Path) -> None:
    writer = MetricsWriter(path)
    for step in range(50):
        writer.write(step, {"a": float(step)})
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = FORKS.Process(target=write_and_die, args=(path,))
    writer.start()
    writer.join(30)
    assert writer.exitcode == -signal.SIGKILL
    assert [point.step for point in read_metrics(path)] == list(range(50))


# -- the curve -----------------------------------------------------------------------------------------


def attempt(run: Path, number: int, points: dict[int, dict[str, float]]) -> None:
    folder = run / "attempts" / str(number)
    folder.mkdir(parents=True)
    with MetricsWriter(folder / "metrics.jsonl") as writer:
        for step, data in points.items():
            writer.write(step, data)


def test_a_later_attempt_replaces_what_it_did_again(tmp_path: Path) -> None:
    attempt(tmp_path, 2, {3: {"r": 0.33}, 4: {"r": 0.44}})
    attempt(tmp_path, 1, {1: {"r": 0.1}, 2: {"r": 0.2}, 3: {"r": 0.3}, 4: {"r": 0.4}, 5: {"r": 0.5}})
    found = [(point.step, point.data["r"]) for point in curve(tmp_path)]
    assert found == [(1, 0.1), (2, 0.2), (3, 0.33), (4, 0.44)]  # step 5 is not in the model any more


def test_a_validation_at_the_step_it_went_on_from_keeps_that_steps_numbers(tmp_path: Path) -> None:
    attempt(tmp_path, 1, {4: {"r": 0.4}, 5: {"r": 0.5}})
    attempt(tmp_path, 2, {5: {"val": 0.9}, 6: {"r": 0.6}})
    assert [point.data for point in curve(tmp_path)] == [{"r": 0.4}, {"r": 0.5, "val": 0.9}, {"r": 0.6}]


def test_a_step_that_was_trained_again_has_the_later_numbers_alone(tmp_path: Path) -> None:
    attempt(tmp_path, 1, {4: {"r": 0.4, "timing_s/step": 2.0, "only/here": 1.0}, 5: {"r": 0.5}})
    attempt(tmp_path, 2, {4: {"r": 0.44, "timing_s/step": 2.0}})
    assert [point.data for point in curve(tmp_path)] == [{"r": 0.44, "timing_s/step": 2.0}]


def test_attempts_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        attempt(tmp_path, number, {1: {"r": float(number)}})
    assert [point.data["r"] for point in curve(tmp_path)] == [10.0]
    assert curve(tmp_path / "none") == []


# -- what they mean ------------------------------------------------------------------------------------


def test_the_reward_is_the_raw_score_where_there_is_one() -> None:
    assert reward({"critic/rewards/mean": 2.0, "critic/score/mean": 1.0}) == 1.0
    assert reward({"critic/rewards/mean": 2.0}) == 2.0
    assert reward({"val-core/x/reward/mean@1": 2.0}) is None
    points = [Point(1, 0, {"critic/score/mean": math.nan}), Point(2, 0, {}), Point(3, 0, {REWARD: 0.5})]
    assert rewards(points) == [(3, 0.5)]


REWARD = "critic/score/mean"


def test_time_and_tokens_per_die_and_per_card() -> None:
    found = parse_line(FULL)
    assert found is not None
    data = found[1]
    assert list(phase_seconds(data)) == ["gen", "reward", "old_log_prob", "ref", "adv", "update_actor"]
    assert phase_seconds(data)["update_actor"] == 0.79
    assert seconds(data) == 1.573
    assert seconds({"perf/time_per_step": 2.0}) == 2.0
    assert seconds({}) is None
    assert throughput(data, dies_per_card=2) == (1051.39, 2 * 1051.39)
    assert throughput({}) is None


def test_generated_batches_are_counted_where_the_trainer_counts_them() -> None:
    """DAPO's trainer, which generates again for its filter."""
    plain = [Point(step, 0.0, {"critic/score/mean": 0.5}) for step in (1, 2, 3)]
    assert generated_batches(plain) == 3
    assert generated_batches([*plain, Point(4, 0.0, {"train/num_gen_batches": 3.0})]) == 6
    assert (
        generated_batches([Point(1, 0.0, {"train/num_gen_batches": value}) for value in (math.nan, math.inf)])
        == 2
    )
    assert generated_batches([]) == 0
