"""Metrics in the trainer's log, with the rounding of verl at 54c9b73 and without."""

from __future__ import annotations

import importlib
import numbers
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.python_roots import REHEARSAL
from npu_rl.training.monitor.step_lines import StepLines


@pytest.fixture
def standin() -> Iterator[Any]:
    sys.path.insert(0, str(REHEARSAL))
    try:
        yield importlib.import_module("npu_rl_standins.full_metrics")
    finally:
        sys.path.remove(str(REHEARSAL))


def logger(form: str) -> Any:
    """verl/utils/logger/aggregate_logger.py, which writes numbers in some form."""

    def concat_dict_to_str(data: dict[str, object], step: int) -> str:
        numbers_ = {name: value for name, value in data.items() if isinstance(value, numbers.Number)}
        return " - ".join([f"step:{step}", *(f"{name}:{value:{form}}" for name, value in numbers_.items())])

    return SimpleNamespace(concat_dict_to_str=concat_dict_to_str)


def test_what_verl_rounds_is_written_with_all_digits(standin: Any) -> None:
    module = logger(".3f")
    metrics = {"actor/lr": 3e-7, "critic/score/mean": 0.123456789012345, "tokens": 64, "text": "left out"}
    assert "actor/lr:0.000 - critic/score/mean:0.123 - tokens:64.000" in module.concat_dict_to_str(metrics, 2)
    standin._install_in(module)
    line = module.concat_dict_to_str(metrics, step=2)
    assert StepLines().parse(line) == (
        2,
        {name: value for name, value in metrics.items() if value != "left out"},
    )
