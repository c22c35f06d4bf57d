"""Lines of a log with the metrics of a step, as trainers other than verl's write them."""

from __future__ import annotations

import math

import pytest

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.step_lines import StepLines

# As mindspeed_rl/utils/loggers.py@62e9928 formats metrics, behind its handler's prefix and Ray's.
MINDSPEED_RL = (
    "\x1b[36m(train pid=4711, ip=10.0.0.2)\x1b[0m 2025-06-01 10:00:00,123 - INFO - [2025-06-01 02:00:00] iteration: "
    "3 / 1000 | timing/all : 61.5000 | timing/update : 20.2500 | grpo/lr : 1.000000e-06 | grpo/score/mean : 0.1250 | "
    "actor/pg_loss : nan | response_length/mean : 812.0000 "
)
# As megatron/training/training.py@core_r0.8.0 prints them.
MEGATRON = (
    " [2025-06-01 10:00:00] iteration        7/     100 | consumed samples:            8 | elapsed time per iteration "
    "(ms): 1234.5 | learning rate: 1.000000E-06 | lm loss: 1.5E+00 | number of nan iterations:   0 |"
)
NAMES = {"critic/score/mean": "grpo/score/mean", "timing_s/step": "timing/all"}


def test_the_metrics_of_an_iteration_are_kept_under_the_trainers_names_and_verls() -> None:
    found = StepLines(True, NAMES).parse(MINDSPEED_RL)
    assert found is not None
    step, data = found
    assert step == 3
    assert math.isnan(data.pop("actor/pg_loss"))
    assert data == {
        "timing/all": 61.5,
        "timing_s/step": 61.5,
        "timing/update": 20.25,
        "grpo/lr": 1e-6,
        "grpo/score/mean": 0.125,
        "critic/score/mean": 0.125,
        "response_length/mean": 812.0,
    }


def test_megatrons_own_lines_are_read_too() -> None:
    found = StepLines(True).parse(MEGATRON)
    assert found is not None
    assert found[0] == 7
    assert found[1]["learning rate"] == 1e-6
    assert found[1]["elapsed time per iteration (ms)"] == 1234.5


@pytest.mark.parametrize(
    "line",
    [
        "sync start grpo training at iteration: 0/1000 ...",
        "iteration: 3 / 1000 | nothing",
        "iteration: 3 / 1000",
        "max_iteration: 3 / 1000 | a : 1",
        "saved checkpoint of iteration 3",
        "step:1 - critic/score/mean:0.5",
    ],
)
def test_other_lines_are_no_step(line: str) -> None:
    assert StepLines(True).parse(line) is None


def test_verls_lines_are_verls() -> None:
    assert StepLines().parse("step:1 - critic/score/mean:0.5") == (1, {"critic/score/mean": 0.5})
    assert StepLines().parse(MINDSPEED_RL) is None


def test_an_alarm_names_the_metric_of_the_log() -> None:
    alarm = Alarm("nan", "Step 1: critic/score/mean is nan", "c", "critic/score/mean")
    told = StepLines(True, NAMES).in_trainers_words(alarm)
    assert (told.message, told.place) == ("Step 1: grpo/score/mean is nan", "grpo/score/mean")
