"""Lines of a log with the metrics of a step, as trainers write them."""

from __future__ import annotations

import math
import pprint

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.step_lines import StepLines

# As mindspeed_rl/utils/loggers.py@62e9928 formats metrics, behind its handler's prefix and Ray's.
MINDSPEED_RL = (
    "\x1b[36m(train pid=4711, ip=10.0.0.2)\x1b[0m 2025-06-01 10:00:00,123 - INFO - [2025-06-01 02:00:00] iteration: "
    "3 / 1000 | timing/all : 61.5000 | grpo/lr : 1.000000e-06 | grpo/score/mean : 0.1250 | actor/pg_loss : nan "
)
# As megatron/training/training.py@core_r0.8.0 prints them.
MEGATRON = (
    " [2025-06-01 10:00:00] iteration        7/     100 | consumed samples:            8 | elapsed time per iteration "
    "(ms): 1234.5 | learning rate: 1.000000E-06 | lm loss: 1.5E+00 | number of nan iterations:   0 |"
)
NAMES = {"critic/score/mean": "grpo/score/mean", "timing_s/step": "timing/all"}
KEYS = st.text(alphabet="abcxyz/_@0123-. ", min_size=1, max_size=20).filter(
    lambda key: key == key.strip() and " - " not in f" {key} "
)


def parse(line: str) -> tuple[int, dict[str, float]] | None:
    return StepLines().parse(line)


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "(TaskRunner pid=1) ", "(TaskRunner pid=1, ip=10.0.0.2) ", "\x1b[36m(main_task pid=1)\x1b[0m "),
        "(EngineCore_DP0 pid=7) (TaskRunner pid=1, ip=10.0.0.2) ",
        "Training Progress:  20%|##  | 1/5 [00:03<00:12,  3.1s/it] ",
    ],
)
def test_whatever_stands_before_it(prefix: str) -> None:
    assert parse(f"{prefix}step:3 - a/b:1.5 - c:2") == (3, {"a/b": 1.5, "c": 2.0})


def test_every_way_to_write_a_number_and_nothing_else() -> None:
    line = (
        "step:0 - a:np.float64(0.25) - c:-inf - d:1e-06 - e:-3 - f:0.000 - g:True - i:tensor(2.) - j:.5 - k:1E+3 - "
        "x:fast - x:1_000 - x: - :5 - x:0x10 - x:٣ - l:inf [repeated 2x across cluster]"
    )
    assert parse(line) == (
        0,
        {
            **{"a": 0.25, "c": -math.inf, "d": 1e-06, "e": -3.0, "f": 0.0, "g": 1.0},
            **{"i": 2.0, "j": 0.5, "k": 1000.0, "l": math.inf},
        },
    )
    nan = parse("step:0 - b:nan - h:np.float32(nan)")
    assert nan is not None and list(map(math.isnan, nan[1].values())) == [True, True]


@pytest.mark.parametrize(
    "line",
    [
        *("", "step:5", "step:5 - ", "step:five - a:1", "global_step:5 - a:1", "training/step:5 - a:1"),
        *(
            "timing_s/step:2 - a:1",
            "local_global_step_folder: /x/global_step_6 - a:1",
            "step:1 - nothing here",
        ),
        *(f"step:{'9' * 5000} - a:1", MINDSPEED_RL),
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert parse(line) is None


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    for line in (text, f"step:1 - {text}", f"(T pid=1) step:1 - a:{text}", f"step:{text} - a:1"):
        found = parse(line)
        assert found is None or (found[0] >= 0 and found[1])


@given(
    st.integers(min_value=0, max_value=10**12),
    st.dictionaries(KEYS, st.floats() | st.integers(-(10**18), 10**18), min_size=1, max_size=8),
)
def test_what_verl_prints_is_what_is_read(step: int, data: dict[str, float]) -> None:
    line = " - ".join([f"step:{step}", *(f"{key}:{pprint.pformat(value)}" for key, value in data.items())])
    found = parse(f"\x1b[36m(TaskRunner pid=1)\x1b[0m {line}")
    assert found is not None
    assert found[0] == step
    assert {k: repr(v) for k, v in found[1].items()} == {k: repr(float(v)) for k, v in data.items()}


@pytest.mark.parametrize(
    "line", ["iteration: 3 / 1000 | nothing", "max_iteration: 3 / 1000 | a : 1", "step:1 - a:0.5"]
)
def test_other_lines_are_no_iteration(line: str) -> None:
    assert StepLines(True).parse(line) is None


def test_the_metrics_of_an_iteration_are_kept_under_the_trainers_names_and_verls() -> None:
    found = StepLines(True, NAMES).parse(MINDSPEED_RL)
    assert found is not None and found[0] == 3 and math.isnan(found[1].pop("actor/pg_loss"))
    assert found[1] == {
        **{"timing/all": 61.5, "timing_s/step": 61.5, "grpo/lr": 1e-6},
        **{"grpo/score/mean": 0.125, "critic/score/mean": 0.125},
    }
    found = StepLines(True).parse(MEGATRON)
    assert found is not None and found[0] == 7
    assert found[1]["learning rate"] == 1e-6 and found[1]["elapsed time per iteration (ms)"] == 1234.5
