"""What a rehearsal's report says of the recipe's device, and of random weights."""

from __future__ import annotations

import pytest

from npu_rl.rehearsal.rehearsal_report import RehearsalReport, TrainPart


@pytest.mark.parametrize(
    ("device", "named", "not_named"),
    [
        ("npu", ("HCCL", "an NPU"), "GPU"),
        ("cpu", ("HCCL", "an NPU"), "GPU"),
        ("cuda", ("NCCL", "a GPU"), "NPU"),
    ],
)
def test_the_report_speaks_of_the_recipes_device(device: str, named: tuple[str, str], not_named: str) -> None:
    report = RehearsalReport("demo", "0" * 40, "1" * 40, device=device)
    text = report.text()
    assert f"only {named[1]} can show:" in text and not_named not in text
    assert any(line.startswith(named[0]) for line in report.to_json()["only_an_npu_can_show"])


@pytest.mark.parametrize("engine", [False, True])
def test_a_level_with_random_weights_says_what_would_not_show(engine: bool) -> None:
    part = TrainPart(engine=engine, transfer=5e-5, curve=[(1, 0.5)])
    text = RehearsalReport("demo", "0" * 40, "1" * 40, train=part).text()
    said = "of random weights: a wrong temperature, scale or routing on one side would hardly show"
    assert (said in text) is not engine
