"""The charts: what is thinned keeps its extremes, attempts are joined, and a missing metric is named."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.training.monitor.metrics import Point
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.report.metric_panels import MOST_DRAWN, MetricPanel, report_panels, thinned_steps
from npu_rl.training.report.published_rows import PER_CARD, PER_DIE, all_rows, published_rows
from npu_rl.training.report.report_sections import chart_section
from npu_rl.training.report.static_chart import number_text, static_chart
from tests.report.made_run import metrics
from tests.report.test_markup import read
from tests.support import ROOT

LARGEST = 1.7976931348623157e308
VALUES = st.none() | st.floats(allow_nan=False, allow_infinity=False)


def panels(points: list[Point], **settings: object) -> dict[str, MetricPanel]:
    return {panel.id: panel for panel in report_panels(points, 2, **settings)}  # type: ignore[arg-type]


@given(
    st.integers(1, 4).flatmap(lambda count: st.lists(st.tuples(*[VALUES] * count), min_size=30, max_size=70)),
    st.sampled_from([10, 20, 40, 1000]),
)
def test_thinning_keeps_the_ends_and_every_extreme(rows: list[tuple[float | None, ...]], most: int) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    kept = thinned_steps(columns, most)
    assert kept == sorted(set(kept))
    assert {0, len(rows) - 1} <= set(kept)
    assert len(kept) <= max(most, 2 + 2 * len(columns))
    assert len(kept) == len(rows) or len(rows) > most
    for column in columns:
        known = [value for value in column if value is not None]
        shown = [value for index in kept if (value := column[index]) is not None]
        if known:
            assert (min(known), max(known)) == (min(shown), max(shown))


def test_a_run_of_a_thousand_steps_is_thinned() -> None:
    found = panels([Point(step, 0.0, metrics(step)) for step in range(1, 1001)])
    for panel in found.values():
        if panel.series:
            assert panel.of_steps == 1000
            assert len(panel.steps) <= MOST_DRAWN
            assert (panel.steps[0], panel.steps[-1]) == (1, 1000)
    assert sum(len(panel.series) for panel in found.values()) >= 20


def test_throughput_is_per_die_and_per_card() -> None:
    found = panels([Point(1, 0.0, {"perf/throughput": 60.0})])["throughput"]
    assert [(one.key, one.values) for one in found.series] == [(PER_DIE, (60.0,)), (PER_CARD, (120.0,))]


def test_the_memory_that_verl_names_after_the_actor_is_drawn() -> None:
    """A line of verl 0.9's log, whose actor's output is renamed as a whole."""
    found = StepLines().parse(
        "step:3 - actor/perf/max_memory_allocated_gb:49.135295 - actor/perf/max_memory_reserved_gb:50.5"
    )
    assert found is not None
    memory = panels([Point(found[0], 0.0, found[1])], published={"perf/max_memory_allocated_gb": 49.14})[
        "memory"
    ]
    assert [(one.name, one.values) for one in memory.series] == [
        ("allocated", (49.135295,)),
        ("reserved", (50.5,)),
    ]
    assert memory.limits == (("published: allocated", 49.14),)


def test_what_is_not_a_number_is_a_gap_and_its_step_is_named() -> None:
    values = (1.0, math.nan, math.inf, 2.0)
    points = [Point(step, 0.0, {"critic/score/mean": value}) for step, value in enumerate(values)]
    found = panels(points)["reward"]
    assert found.not_finite == (1, 2)
    assert None not in found.steps
    assert [value for value in found.series[0].values if value is not None] == [1.0, 2.0]


def test_a_missing_metric_is_named_and_drawn_as_nothing() -> None:
    found = panels([Point(1, 0.0, {"critic/score/mean": 1.0})])
    assert found["entropy"].series == ()
    assert found["entropy"].wanted == ("actor/entropy",)
    assert "validation" not in found


def test_what_only_the_other_run_has_is_drawn_and_its_gaps_are_told() -> None:
    ours = [Point(step, 0.0, {"critic/score/mean": 0.1}) for step in (1, 2)]
    data = {"val-core/sums/acc": 0.5, "critic/score/mean": math.nan}
    found = panels(
        ours, other=("old", [Point(1, 0.0, data), Point(2, 0.0, {**data, "critic/score/mean": 0.2})], 1)
    )
    assert [(one.name, one.other) for one in found["validation"].series] == [("old: val-core/sums/acc", True)]
    assert (found["reward"].not_finite, found["reward"].other_not_finite) == ((), (1,))
    text = read(str(chart_section(list(found.values()), ()))).text
    assert "NaN or infinite, and not drawn, in step 1 of the other run" in text


def test_another_run_and_published_values_are_in_the_same_chart() -> None:
    ours = [Point(step, 0.0, {"critic/score/mean": step / 10}) for step in (1, 2)]
    theirs = [Point(step, 0.0, {"critic/rewards/mean": step / 20}) for step in (2, 3)]
    found = panels(ours, other=("old", theirs, 1), published={"critic/rewards/mean": 0.9})["reward"]
    assert found.steps == (1, 2, 3)
    assert [(one.name, one.other, one.values) for one in found.series] == [
        ("mean reward", False, (0.1, 0.2, None)),
        ("old: mean reward", True, (None, 0.1, 0.15)),
    ]
    assert found.limits == (("published: mean reward", 0.9),)


def test_each_metric_of_a_chart_has_a_colour_of_its_own_and_the_other_runs_is_the_same() -> None:
    phases = (
        "gen",
        "reshard",
        "reward",
        "old_log_prob",
        "ref",
        "adv",
        "update_actor",
        "values",
        "update_critic",
    )
    names = ("step", *phases, "update_weights", "testing", "save_checkpoint")
    points = [Point(step, 0.0, {f"timing_s/{name}": 1.0 + step for name in names}) for step in (1, 2)]
    found = panels(points, other=("old", points, 1))["phases"]
    colours = {one.name: one.colour for one in found.series}
    assert len(colours) == 2 * len(names)
    assert len({colours[name] for name in names}) == len(names)
    assert all(colours[f"old: {name}"] == colours[name] for name in names)
    style = (ROOT / "npu_rl/training/report/assets/report.css").read_text()
    for colour in colours.values():
        assert style.count(f"--s{colour}: ") == 3 and f".s{colour} {{ stroke: var(--s{colour}); }}" in style
    drawn = re.findall(r'class="line (s\d+)( other)?"', str(static_chart(found, [])))
    assert sorted(drawn) == sorted((f"s{one.colour}", " other" * one.other) for one in found.series)


@pytest.mark.parametrize(
    "values", [[1.0], [0.0, 0.0], [1e308, -1e308], [5e-324], [1.0, None, 3.0], [1e-9, 2e-9]]
)
def test_a_static_chart_is_drawn_of_any_values(values: list[float | None]) -> None:
    points = [
        Point(step, 0.0, {} if value is None else {"critic/score/mean": value})
        for step, value in enumerate(values)
    ]
    drawn = str(static_chart(panels(points)["reward"], [0]))
    assert "nan" not in drawn and "inf" not in drawn
    assert {name for name, _ in read(drawn).tags} == {"svg", "path", "text"}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*metrics(1), "val-core/math/acc"]), st.floats() | st.just(LARGEST), max_size=4
        ),
        max_size=4,
    )
)
def test_charts_are_drawn_whatever_the_metrics_are(steps: list[dict[str, float]]) -> None:
    points = [Point(step, 0.0, data) for step, data in enumerate(steps)]
    for other in (None, ("old", points[1:], 1)):
        found = report_panels(points[:-1], 2, other=other, published={"actor/grad_norm": 0.5})
        for panel in found:
            assert bool(panel.steps) == any(value is not None for one in panel.series for value in one.values)
        text = read(str(chart_section(found, [0, 1]))).text
        assert all(panel.title in text for panel in found)


def test_numbers_have_four_digits_that_count() -> None:
    shown = [number_text(value) for value in (0.0, 1338.3, 62.85, 0.0056, 123456.7, -0.858, 1e300)]
    assert shown == ["0", "1,338.3", "62.85", "0.0056", "123,457", "-0.858", "1e+300"]


def test_published_throughput_is_given_per_die_and_per_card() -> None:
    (row,) = published_rows("deepseek-r1-zero-256die")
    assert (row.step, row.values[PER_CARD], row.values[PER_DIE]) == (27, 125.7, 62.85)
    tokens = 512 * 16 * (row.values["prompt_length/mean"] + row.values["response_length/mean"])
    assert tokens / row.values["timing_s/step"] / 256 == pytest.approx(row.values[PER_DIE], rel=0.001)
    (gspo,) = published_rows("today-gspo-qwen3-30b")
    assert (gspo.values[PER_DIE], gspo.values[PER_CARD]) == (32.06, 64.12)
    assert published_rows("pai-deepseek-v3-128gpu") == []


def test_published_rows_are_of_bundled_recipes() -> None:
    from npu_rl.common.bundled import bundled_recipes

    assert {name for row in all_rows() for name in row.recipes} <= set(bundled_recipes())
