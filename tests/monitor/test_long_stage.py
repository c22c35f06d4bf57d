"""Stages that block npu-rl before the trainer starts: they are reported while they last."""

from __future__ import annotations

import io
import re
import threading

from npu_rl.training.monitor.long_stage import long_stage
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_clock import Wait


class CountingScreen(PlainScreen):
    """A plain screen that knows when a number of lines about waiting was printed."""

    def __init__(self, lines: int) -> None:
        self.text, self.left, self.waits = io.StringIO(), lines, list[float]()
        self.enough = threading.Event()
        super().__init__(self.text)

    def waiting(self, wait: Wait, slow: bool) -> None:
        super().waiting(wait, slow)
        self.waits.append(wait.waited)
        if len(self.waits) >= self.left:
            self.enough.set()


def test_a_stage_that_lasts_is_reported_each_time_its_duration_has_doubled() -> None:
    screen = CountingScreen(3)
    with long_stage(screen, "making the model", first=0.001):
        assert screen.enough.wait(60)
    first, *others = screen.text.getvalue().splitlines()
    assert first == "0:00 making the model"
    assert len(others) >= 3
    assert all(re.fullmatch(r"making the model: [0-9]+:[0-9]{2}", line) for line in others)
    assert all(later >= 2 * earlier for earlier, later in zip(screen.waits, screen.waits[1:], strict=False))
