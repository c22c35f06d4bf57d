"""What people see: plain lines for pipes, a live table on a real terminal, a curve that any terminal can show."""

from __future__ import annotations

import io
import math
import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import Point
from npu_rl.training.monitor.phase_clock import PhaseWait
from npu_rl.training.monitor.plot import final_curve
from npu_rl.training.monitor.screen import LiveScreen, PlainScreen, screen_for
from npu_rl.training.monitor.step_text import clock, step_line
from tests.support import ROOT
from tests.training.processes import environment

STEP = {
    "critic/score/mean": 0.12345,
    "response_length/mean": 15.84,
    "timing_s/step": 0.612,
    "timing_s/gen": 0.3,
    "timing_s/reward": 0.001,
    "timing_s/old_log_prob": 0.05,
    "timing_s/ref": 0.05,
    "timing_s/update_actor": 0.21,
    "perf/throughput": 432.4,
}
LINE = "step 12/60 reward 0.123 len 15.8 0.61 s (gen .30 upd .21) 432 tok/s/die ETA 0:32"
WHOLE = (
    "step 12/60 reward 0.123 len 15.8 0.61 s (gen .30 old .05 ref .05 upd .21) "
    "432 tok/s/die 865 tok/s/card ETA 0:32"
)
ALARM = Alarm("nan", "Step 3: actor/grad_norm is nan", "An overflow.", "actor/grad_norm")


def test_a_step_in_one_line() -> None:
    assert step_line(12, 60, STEP, 32.2, dies_per_card=2) == LINE
    assert step_line(12, 60, STEP, 32.2, dies_per_card=2, width=120) == WHOLE


@given(st.integers(20, 200), st.floats(0, 1e6), st.floats(0, 1e5), st.integers(1, 2))
def test_a_step_is_as_long_as_its_line(width: int, took: float, rate: float, dies: int) -> None:
    data = {**STEP, "timing_s/step": took, "timing_s/gen": took / 2, "perf/throughput": rate}
    line = step_line(1000, 1000, data, 99999.0, dies, width)
    least = step_line(1000, 1000, data, 99999.0, dies, 1)
    assert len(line) <= max(width, len(least))
    assert (
        least.startswith("step 1000/1000 reward 0.123 len 15.8 ")
        and "(" not in least
        and "tok/s" not in least
    )


def test_what_a_step_has_no_number_for_is_left_out() -> None:
    assert step_line(3, None, {}, None) == "step 3"
    assert step_line(3, None, {}, math.nan) == step_line(3, None, {}, math.inf) == "step 3"
    assert step_line(3, None, {"critic/rewards/mean": -1.0}, 0.0) == "step 3 reward -1.000 ETA 0:00"
    assert (
        step_line(3, 4, {"timing_s/step": 137.2, "timing_s/gen": 99.96}, None) == "step 3/4 137 s (gen 100.0)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (-3, "0:00"), (59.6, "1:00"), (754, "12:34"), (3600, "1:00:00"), (99999, "27:46:39")],
)
def test_the_time_left(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_pipe_gets_a_line_per_step() -> None:
    stream = io.StringIO()
    assert isinstance(screen_for(stream), PlainScreen)
    times = iter([100.0, 112.4])
    screen = PlainScreen(stream, dies_per_card=2, now=lambda: next(times))
    screen.stage("starting Ray")
    screen.stage("starting Ray")
    screen.step(12, 60, STEP, 32.2)
    screen.alarm(ALARM)
    screen.close()
    assert stream.getvalue() == (
        f"0:12 starting Ray\n{LINE}\nWARNING: Step 3: actor/grad_norm is nan\n"
        "  why:   An overflow.\n  where: actor/grad_norm\n"
    )


def test_an_alarm_says_what_to_do_once_and_then_how_often() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    for count in range(1, 10):
        screen.alarm(replace(ALARM, message=f"Step {count}", hint="Stop.", cause="An\noverflow", count=count))
    assert stream.getvalue() == (
        "WARNING: Step 1\n  why:   An\n         overflow\n  where: actor/grad_norm\n  next:  Stop.\n"
        "WARNING again (time 2): Step 2\nWARNING again (time 4): Step 4\nWARNING again (time 8): Step 8\n"
    )


def test_a_phase_that_takes_longer_than_usual_is_a_line_in_a_pipe() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    screen.waiting(PhaseWait("gen", 20.0, 120.0, 30.0), False)
    screen.waiting(PhaseWait("gen", 60.0, 120.0, 30.0), True)
    screen.waiting(PhaseWait("building the workers", 240.0, 1800.0, None), True)
    screen.waiting(PhaseWait("gen", 240.0, 120.0, 30.0), True)
    assert stream.getvalue() == (
        "gen: 1:00, at most 0:30 before; an alarm comes at 2:00\n"
        "building the workers: 4:00; an alarm comes at 30:00\n"
        "gen: 4:00, at most 0:30 before\n"
    )


def test_a_fatal_alarm_says_so() -> None:
    stream = io.StringIO()
    PlainScreen(stream).alarm(Alarm("nan", "m", "c", "p", fatal=True))
    assert stream.getvalue().startswith("FATAL: m\n")


def test_words_that_the_terminal_cannot_show_do_not_end_the_run() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainScreen(stream).stage("größer")
    assert raw.getvalue() == b"0:00 gr\\xf6\\xdfer\n"


SHOW = """
import sys
from npu_rl.training.monitor.screen import LiveScreen, screen_for
from npu_rl.training.monitor.alarm import Alarm
assert "rich" not in sys.modules
screen = screen_for(sys.stderr, dies_per_card=2)
print(type(screen).__name__)
screen.stage("building [workers]")
for step in range(1, 13):
    screen.step(step, 12, {"critic/score/mean": step / 100, "perf/throughput": 100.0}, 12.0 - step)
screen.note("UNPROVEN: a [print]")
screen.alarm(Alarm("nan", "Step [3]: grad_norm is nan", "An overflow.", "actor/grad_norm"))
screen.close()
print("after", file=sys.stderr)
"""


def on_a_terminal(term: str) -> tuple[str, str]:
    """What SHOW prints to its standard output, and what a terminal gets as its standard error."""
    ours, theirs = pty.openpty()
    env = {**environment(None), "PYTHONPATH": str(ROOT), "TERM": term, "COLUMNS": "100", "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW], env=env, stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.wait(10) == 0, shown.decode()
    return said, shown.decode()


def test_a_terminal_gets_a_live_table_and_is_left_as_it_was() -> None:
    said, shown = on_a_terminal("xterm-256color")
    assert said == "LiveScreen\n"
    assert "\x1b[?25l" in shown  # the cursor goes
    assert shown.rindex("\x1b[?25h") < shown.index("after")  # and comes back
    table = shown[shown.rindex("tok/s/card") :]
    assert "12/12" in table
    assert "0.120" in table
    assert "200" in table  # per card: two dies
    assert " 4/12" not in table  # the last eight steps
    assert "WARNING: Step [3]: grad_norm is nan" in shown
    assert "UNPROVEN: a [print]" in shown[shown.rindex("WARNING") :]  # it is drawn with the table each time


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    said, shown = on_a_terminal("dumb")
    assert said == "PlainScreen\n"
    assert "UNPROVEN: a [print]" in shown
    assert "step 12/12 reward 0.120 100 tok/s/die 200 tok/s/card ETA 0:00" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_step_is_one_line_of_the_table_at_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    screen = LiveScreen(stream, dies_per_card=2)
    for step in range(1, 13):
        screen.step(
            1000 + step, 2000, {**STEP, "response_length/mean": 16384.0, "timing_s/step": 1338.0}, 99999.0
        )
    screen.waiting(PhaseWait("gen", 700.0, 2700.0, 900.0), False)
    screen.alarm(ALARM)
    screen.alarm(replace(ALARM, count=3))
    screen.close()
    lines = stream.getvalue().splitlines()
    rows = [line for line in lines if "/2000" in line]
    assert len(rows) == 8 and all(len(line.rstrip()) <= columns for line in rows)
    assert ("tok/s/card" in stream.getvalue()) == (columns >= 100)
    assert all("gen .30 old .05 ref .05 upd .21" in row for row in rows) == (columns >= 80)
    assert any(line.startswith("3 times, last: Step 3: ") for line in lines)


@pytest.mark.parametrize(("columns", "dies"), [(80, 1), (80, 2), (100, 1), (110, 2)])
def test_no_figure_of_a_step_is_cut_off(columns: int, dies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are those of the published DeepSeek-R1-Zero run, whose phases do not all fit."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    screen = LiveScreen(stream, dies_per_card=dies)
    phases = {"gen": 495.5, "reshard": 67.6, "old_log_prob": 134.2, "ref": 117.3, "update_actor": 495.2}
    data = {
        **{"critic/score/mean": 0.5134, "response_length/mean": 2553.0, "timing_s/step": 1338.0},
        **{"perf/throughput": 62.9, **{f"timing_s/{name}": value for name, value in phases.items()}},
    }
    screen.step(27, 200, data, 99999.0)
    screen.close()
    (row,) = (line for line in stream.getvalue().splitlines() if line.startswith("27/200"))
    assert "…" not in stream.getvalue() and len(row) <= columns
    assert row.split()[:4] == ["27/200", "0.513", "2553.0", "1338"]


# -- the curve -----------------------------------------------------------------------------------------


def points(*values: float) -> list[Point]:
    return [Point(step, 0.0, {"critic/score/mean": value}) for step, value in enumerate(values, 1)]


def test_a_curve_in_ascii() -> None:
    assert final_curve(points(0, 0.25, 0.5, 0.75, 1.0), 24, 5, encoding="ascii") == (
        "  1 |                ***\n"
        "    |            ****\n"
        "0.5 |       *****\n"
        "    |   ****\n"
        "  0 |***\n"
        "    +-------------------\n"
        "     step 1            5"
    )


def test_a_curve_in_braille_with_a_goal() -> None:
    text = final_curve(points(*(step / 60 for step in range(61))), 60, 10, 0.9, encoding="utf-8")
    lines = text.split("\n")
    assert len(lines) == 12
    assert max(map(len, lines)) <= 60
    assert lines[0].lstrip().startswith("1 │")
    (goal,) = [line for line in lines if line.lstrip().startswith("goal 0.9 │")]
    assert "┄" in goal
    assert any(0x2800 < ord(sign) <= 0x28FF for sign in text)
    assert lines[-1].split() == ["step", "1", "61"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "gb2312", "no-such-encoding"])
def test_any_terminal_can_show_it(encoding: str) -> None:
    text = final_curve(points(0.1, 0.9), 40, 6, 0.5, encoding=encoding)
    assert text.isascii()
    assert "goal 0.5 |" in text


def test_no_reward_is_no_curve_and_one_is_a_dot() -> None:
    assert final_curve([]) == ""
    assert final_curve([Point(1, 0.0, {"val": 1.0})]) == ""
    assert final_curve(points(math.nan)) == ""
    assert final_curve(points(0.5), 30, 4, encoding="ascii").count("*") == 1


@given(
    st.lists(st.floats(), max_size=40),
    st.integers(1, 90),
    st.integers(1, 15),
    st.none() | st.floats(-1e300, 1e300),
    st.sampled_from(["ascii", "utf-8"]),
)
def test_every_curve_has_its_size(
    values: list[float], width: int, height: int, goal: float | None, encoding: str
) -> None:
    text = final_curve(points(*values), width, height, goal, encoding=encoding)
    if any(math.isfinite(value) for value in values):
        lines = text.split("\n")
        assert len(lines) == max(height, 2) + 2
        assert max(map(len, lines)) <= max(width, 40)
    else:
        assert text == ""
