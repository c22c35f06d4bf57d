"""What people see: plain lines for pipes, a live table on a real terminal, a curve that any terminal can show."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import Point
from npu_rl.training.monitor.plot import final_curve, two_curves
from npu_rl.training.monitor.screen import LiveScreen, PlainScreen, screen_for
from npu_rl.training.monitor.step_clock import Wait
from npu_rl.training.monitor.step_text import step_line

STEP = {
    **{"critic/score/mean": 0.12345, "response_length/mean": 15.84, "perf/throughput": 432.4},
    **{
        "timing_s/step": 0.612,
        "timing_s/gen": 0.3,
        "timing_s/old_log_prob": 0.05,
        "timing_s/update_actor": 0.21,
    },
}
LINE = "step 12/60 reward 0.123 len 15.8 0.61 s (gen 0.30 upd 0.21) 432 tok/s/die ETA 0:32"
# Row 27 of the published DeepSeek-R1-Zero run.
PHASES = {"gen": 495.5, "reshard": 67.6, "old_log_prob": 134.2, "ref": 117.3, "update_actor": 495.2}
PUBLISHED = {
    **{"critic/score/mean": 0.5134, "response_length/mean": 2553.0, "timing_s/step": 1338.0},
    **{"perf/throughput": 62.9, **{f"timing_s/{name}": value for name, value in PHASES.items()}},
}
ALARM = Alarm("nan", "Step 3: actor/grad_norm is nan", "An\noverflow.", "actor/grad_norm", hint="Stop.")


def test_a_step_in_one_line_with_what_it_has() -> None:
    assert step_line(12, 60, STEP, 32.2) == LINE
    assert step_line(27, 200, PUBLISHED, 99999.0) == (
        "step 27/200 reward 0.513 len 2553.0 1338 s (gen 496 old 134 upd 495) 63 tok/s/die ETA 27:46:39"
    )
    assert step_line(3, None, {}, None) == step_line(3, None, {}, math.nan) == "step 3"
    assert step_line(3, None, {"critic/rewards/mean": -1.0}, 0.0) == "step 3 reward -1.000 ETA 0:00"


def test_a_pipe_gets_a_line_per_step() -> None:
    stream = io.StringIO()
    assert isinstance(screen_for(stream), PlainScreen)
    times = iter([100.0, 112.4])
    screen = PlainScreen(stream, now=lambda: next(times))
    screen.stage("starting Ray")
    screen.stage("starting Ray")
    screen.step(12, 60, STEP, 32.2)
    screen.close()
    assert stream.getvalue() == f"0:12 starting Ray\n{LINE}\n"


def test_an_alarm_says_what_to_do_once_and_then_how_often() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    for count in range(1, 10):
        screen.alarm(replace(ALARM, message=f"Step {count}", count=count))
    screen.alarm(replace(ALARM, fatal=True, cause="", place="", hint=""))
    assert stream.getvalue() == (
        "WARNING: Step 1\n  why:   An\n         overflow.\n  where: actor/grad_norm\n  next:  Stop.\n"
        "WARNING again (time 2): Step 2\nWARNING again (time 4): Step 4\nWARNING again (time 8): Step 8\n"
        "FATAL: Step 3: actor/grad_norm is nan\n"
    )


def test_a_step_that_takes_longer_than_usual_is_a_line_in_a_pipe() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    screen.waiting(Wait("step 4", 20.0, 120.0, 30.0), False)
    screen.waiting(Wait("step 4", 60.0, 120.0, 30.0), True)
    screen.waiting(Wait("building the workers", 240.0, 1800.0, None), True)
    screen.waiting(Wait("step 4", 240.0, 120.0, 30.0), True)
    assert stream.getvalue() == (
        "step 4: 1:00, at most 0:30 before; an alarm comes at 2:00\n"
        "building the workers: 4:00; an alarm comes at 30:00\n"
        "step 4: 4:00, at most 0:30 before\n"
    )


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def on_a_terminal(term: str, monkeypatch: pytest.MonkeyPatch) -> tuple[type, str]:
    """The screen that a terminal of this kind gets, and what is written there."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    screen = screen_for(stream)
    screen.stage("building [workers]")
    for step in range(1, 13):
        screen.step(step, 12, {"critic/score/mean": step / 100, "perf/throughput": 100.0}, 12.0 - step)
    screen.note("UNPROVEN: a [print]")
    screen.alarm(replace(ALARM, message="Step [3]: grad_norm is nan"))
    screen.close()
    return type(screen), stream.getvalue()


def test_a_terminal_gets_a_live_table_and_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, shown = on_a_terminal("xterm-256color", monkeypatch)
    assert screen is LiveScreen
    assert shown.index("\x1b[?25l") < shown.rindex("\x1b[?25h")  # the cursor goes, and comes back
    table = shown[shown.rindex("tok/s/die") :]
    assert "12/12" in table and "0.120" in table
    assert " 4/12" not in table  # the last eight steps
    assert "WARNING: Step [3]: grad_norm is nan" in shown
    assert "UNPROVEN: a [print]" in shown[shown.rindex("WARNING") :]  # it is drawn with the table each time


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, shown = on_a_terminal("dumb", monkeypatch)
    assert screen is PlainScreen
    assert "UNPROVEN: a [print]" in shown and "\x1b" not in shown
    assert "step 12/12 reward 0.120 100 tok/s/die ETA 0:00" in shown


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_step_is_one_line_of_the_table_at_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    screen = LiveScreen(stream)
    for step in range(1, 13):
        screen.step(1000 + step, 2000, PUBLISHED, 99999.0)
    screen.waiting(Wait("step 1013", 700.0, 2700.0, 900.0), False)
    screen.alarm(ALARM)
    screen.alarm(replace(ALARM, count=2))
    screen.close()
    rows = [line.rstrip() for line in stream.getvalue().splitlines() if line.startswith("10")]
    assert len(rows) == 8 and all(len(row) <= columns for row in rows)
    assert all(row.split()[1:4] == ["0.513", "2553.0", "1338"] and row.endswith(" 63") for row in rows)
    assert ("gen 496 old 134 upd 495" in rows[0]) == (columns >= 80)
    assert "WARNING again (time 2): " in stream.getvalue()


# -- the curve -----------------------------------------------------------------------------------------


def points(*values: float) -> list[Point]:
    return [Point(step, 0.0, {"critic/score/mean": value}) for step, value in enumerate(values, 1)]


def test_a_curve() -> None:
    assert final_curve(points(0, 0.25, 0.5, 0.75, 1.0), None, 24, 5) == (
        "  1 |                ***\n"
        "    |            ****\n"
        "0.5 |       *****\n"
        "    |   ****\n"
        "  0 |***\n"
        "    +-------------------\n"
        "     step 1            5"
    )


def test_a_goal_is_a_broken_line() -> None:
    (goal,) = [
        line for line in final_curve(points(0.0, 0.5, 1.0), 0.9).splitlines() if line.startswith("goal 0.9 |")
    ]
    assert "- - -" in goal and "*" in goal


def test_no_reward_is_no_curve_and_one_is_a_dot() -> None:
    for none in ([], [Point(1, 0.0, {"val": 1.0})], points(math.nan)):
        assert final_curve(none) == two_curves(none, none) == ""
    assert final_curve(points(0.5), None, 30, 4).count("*") == 1


@given(
    st.lists(st.floats(), max_size=40),
    *(st.integers(1, 90), st.integers(2, 15), st.none() | st.floats(-1e300, 1e300)),
)
def test_every_curve_has_its_size(values: list[float], width: int, height: int, goal: float | None) -> None:
    text = final_curve(points(*values), goal, width, height)
    if any(math.isfinite(value) for value in values):
        lines = text.split("\n")
        assert len(lines) == height + 2
        assert max(map(len, lines)) <= max(width, 40)
    else:
        assert text == ""
