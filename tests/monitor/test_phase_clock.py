"""A phase hangs by what phases of its name have taken; a slow one that is always slow does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.phase_clock import PhaseClock, PhaseEvent, parse_phase
from npu_rl.training.monitor.phases_of_recipe import phase_clock

STEP = [("gen", 30.0), ("reward", 0.5), ("update_actor", 20.0)]


def begin(clock: PhaseClock, phase: str, now: float) -> None:
    clock.event(PhaseEvent(phase, True, now), now)


def end(clock: PhaseClock, phase: str, now: float) -> None:
    clock.event(PhaseEvent(phase, False, now), now)


def train(clock: PhaseClock, now: float, phases: list[tuple[str, float]]) -> float:
    """A step of these phases; when it ended. The clock is asked just before each of them ends."""
    begin(clock, "step", now)
    for phase, took in phases:
        begin(clock, phase, now)
        now += took
        assert clock.late(now) is None, phase
        end(clock, phase, now)
    end(clock, "step", now)
    return now


def test_a_phase_has_three_times_its_longest_so_far_but_two_minutes_at_least() -> None:
    clock = PhaseClock()
    now = train(clock, 0.0, [("gen", 30.0), ("update_actor", 50.0)])
    begin(clock, "gen", now)
    assert clock.late(now + 120) is None
    late = clock.late(now + 121)
    assert late is not None and (late.phase, late.limit, late.longest) == ("gen", 120.0, 30.0)
    assert clock.late(now + 500) is None, "it is told once"
    end(clock, "gen", now + 600)
    begin(clock, "update_actor", now + 600)
    assert clock.late(now + 750) is None
    late = clock.late(now + 751)
    assert late is not None and (late.phase, late.limit) == ("update_actor", 150.0)


def test_the_first_of_a_phase_has_half_an_hour() -> None:
    clock = PhaseClock(2.0)
    clock.stage("building the workers", 10.0)
    clock.stage("building the workers", 1000.0)  # the same line again
    assert clock.late(1810.0) is None
    late = clock.late(1811.0)
    assert late is not None and (late.phase, late.longest) == ("building the workers", None)
    begin(clock, "gen", 2000.0)
    assert clock.late(3800.0) is None and clock.late(3801.0) is not None
    longer = PhaseClock(3600.0)
    longer.stage("starting Ray", 0.0)
    assert longer.late(3600.0) is None and longer.late(3601.0) is not None


def test_validations_and_saves_ten_times_as_long_as_a_step_are_well() -> None:
    clock = PhaseClock(0.0)
    now = 0.0
    for step in range(1, 60):
        slow = [("testing", 505.0), ("save_checkpoint", 505.0)] if step % 5 == 0 else []
        now = train(clock, now, [*STEP, *slow])
        assert clock.late(now) is None


def test_what_is_inside_of_another_phase_counts_for_itself() -> None:
    clock = PhaseClock(1.0)
    for number in range(3):
        now = 100.0 * number
        begin(clock, "gen", now)
        begin(clock, "gen_max", now + 2)
        end(clock, "gen_max", now + 50)
        end(clock, "gen", now + 51)
    begin(clock, "gen", 300.0)
    going_on = clock.going_on(306.0)
    assert going_on is not None and (going_on.phase, going_on.limit) == ("gen", 6.0)
    begin(clock, "gen_max", 306.0)
    going_on = clock.going_on(310.0)
    assert going_on is not None and (going_on.phase, going_on.limit) == ("gen_max", 144.0)


def test_a_trainer_without_timers_has_steps_and_steps_that_save() -> None:
    recipe = load_recipe("quickstart", ["checkpoint.every=5", "watch.phase_timeout=2"]).recipe
    clock = phase_clock(recipe)
    now = 0.0
    clock.stage("first step", now)
    for step in range(1, 40):
        now += 20.0 if step % 5 == 0 else 2.0
        assert clock.late(now) is None or step == 1
        clock.step(step, now)
    assert clock.late(now + 59) is None, "after step 39 comes one that saves"
    assert clock.late(now + 61) is not None


def test_a_slow_phase_is_told_when_it_is_longer_than_usual_and_then_as_it_doubles() -> None:
    clock = PhaseClock()
    now = train(clock, 0.0, [("gen", 30.0)])
    begin(clock, "gen", now)
    told = [second for second in range(1, 200) if clock.slow(now + second)]
    assert told == [45, 90, 180]
    clock.stage("x", 0.0)


@given(st.text())
def test_any_line_is_an_event_or_nothing(line: str) -> None:
    event = parse_phase(line)
    assert event is None or isinstance(event.phase, str)


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"phase": "gen"}', '{"phase": "a", "begins": true, "time": "x"}', ""]
)
def test_a_damaged_line_is_left_out(line: str) -> None:
    assert parse_phase(line) is None


@given(
    st.lists(st.tuples(st.sampled_from(["gen", "step", "ref", ""]), st.booleans(), st.floats()), max_size=40)
)
def test_events_in_any_order_are_taken(events: list[tuple[str, bool, float]]) -> None:
    clock = PhaseClock()
    for number, (phase, begins, time) in enumerate(events):
        event = parse_phase(json.dumps({"phase": phase, "begins": begins, "time": time}))
        if event is not None:
            clock.event(event, float(number))
            going_on = clock.going_on(float(number))
            assert going_on is not None and going_on.limit >= 120.0
