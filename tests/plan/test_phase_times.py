"""The limit of the first step: published runs were faster, and the figures are those of the docstring."""

from __future__ import annotations

import pytest

from npu_rl.recipes.plan.phase_times import FIRST, MOST, PEAK, UTILISATION, first_step_limit, phase_times_of
from npu_rl.recipes.plan.plan import Plan, plan_of
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.step_clock import FIRST_STEP, step_clock
from npu_rl.training.report.published_rows import published_rows

PUBLISHED = (
    "deepseek-r1-zero-256die",
    "today-gspo-qwen3-30b",
    "newest-gspo-qwen3-30b",
    "today-grpo-qwen3-30b",
    "today-grpo-moonlight-16b",
)


def plan(name: str, *changes: str) -> Plan:
    return plan_of(load_recipe(name, changes))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_limit_is_three_times_above_the_published_step(name: str) -> None:
    (row,) = published_rows(name)
    limit = first_step_limit(plan(name).phase_times)
    assert row["values"]["timing_s/step"] < limit / 3 and limit >= MOST


def test_the_operations_are_those_of_the_docstring() -> None:
    made = plan("deepseek-r1-zero-256die")
    length, sequences = 1024 + 3072, 512 * 16
    forward = 2 * 37e9 * length + 4 * length**2 * 128 * 192 * 61
    seconds = sequences * forward / (256 * PEAK["npu"] * UTILISATION)
    assert made.phase_times["ref"] - FIRST == pytest.approx(seconds, rel=0.02)  # 37 B is a rounded figure
    assert made.phase_times["update_actor"] - FIRST == pytest.approx(4 * (made.phase_times["ref"] - FIRST))
    assert made.phase_times["gen"] - FIRST == pytest.approx(
        3072 * 0.15
    )  # 64 sequences an engine, all at once
    twice = plan("deepseek-r1-zero-256die", "rollout.max_sequences=32").phase_times
    assert twice["gen"] - FIRST == pytest.approx(2 * 3072 * 0.15)


def test_without_sizes_there_is_no_estimate_and_the_clock_has_half_an_hour() -> None:
    assert plan("quickstart").phase_times == {}  # on a CPU
    made = plan("today-gspo-qwen3-30b")
    assert phase_times_of(made.facts) == made.phase_times != {}
    assert first_step_limit({}) == MOST < first_step_limit({"gen": MOST})
    for device, estimates in (("npu", made.phase_times), ("cpu", {})):
        clock = step_clock(made.facts.recipe.model_copy(update={"device": device}), made)
        clock.stage(FIRST_STEP, 0.0)
        assert clock.wait(1.0).limit == first_step_limit(estimates)
