"""A step hangs by what steps like it have taken; one that saves or validates is not compared with the others."""

from __future__ import annotations

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.step_clock import FIRST_STEP, StepClock, step_clock


def steps(clock: StepClock, *seconds: float) -> float:
    """Have the first steps take these seconds; return when the last ended."""
    now = 0.0
    clock.stage(FIRST_STEP, now)
    for step, took in enumerate(seconds, 1):
        now += took
        assert clock.late(now) is None, step
        clock.step(step, now)
    return now


def test_a_step_has_three_times_the_longest_so_far_but_two_minutes_at_least() -> None:
    for longest, limit in ((30.0, 120.0), (50.0, 150.0)):
        clock = StepClock()
        now = steps(clock, 20.0, longest, 10.0)
        assert clock.late(now + limit) is None
        late = clock.late(now + limit + 1)
        assert late is not None and (late.what, late.limit, late.longest) == ("step 4", limit, longest)
        assert clock.late(now + 5000) is None, "it is reported once"
        clock.step(4, now + 5000)
        assert clock.late(now + 5000 + 3 * 5000) is None


def test_the_first_step_and_each_stage_have_half_an_hour() -> None:
    clock = StepClock(2.0)
    clock.stage("building the workers", 10.0)
    clock.stage("building the workers", 1000.0)  # the same line again
    assert clock.late(1810.0) is None
    late = clock.late(1811.0)
    assert late is not None and (late.what, late.longest) == ("building the workers", None)
    clock.stage(FIRST_STEP, 2000.0)
    assert clock.late(3800.0) is None and clock.late(3801.0) is not None
    longer = StepClock(3600.0)
    longer.stage("starting Ray", 0.0)
    assert longer.late(3600.0) is None and longer.late(3601.0) is not None


def test_a_stage_says_nothing_about_steps() -> None:
    clock = StepClock(1.0)
    clock.stage("loading the trainer", 0.0)
    clock.step(1, 50.0)
    clock.step(2, 52.0)
    assert clock.wait(52.0).limit == 6.0


def test_saves_and_validations_ten_times_as_long_as_a_step_are_well() -> None:
    changes = ["checkpoint.every=5", "logging.validate_every=7", "watch.phase_timeout=2", "steps=59"]
    clock = step_clock(load_recipe("quickstart", changes).recipe)
    now = steps(
        clock, *(20.0 if step % 5 == 0 or step % 7 == 0 or step == 59 else 2.0 for step in range(1, 60))
    )
    clock.wait_for(68, now)
    assert clock.wait(now).limit == 6.0
    clock.wait_for(65, now)
    assert clock.wait(now).limit == 60.0


def test_a_slow_step_is_reported_when_it_is_longer_than_usual_and_then_as_it_doubles() -> None:
    clock = StepClock()
    now = steps(clock, 30.0, 20.0)
    assert [second for second in range(1, 200) if clock.slow(now + second)] == [45, 90, 180]
