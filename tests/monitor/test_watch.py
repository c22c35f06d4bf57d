"""What goes wrong in silence is told once, with a cause, and nothing is told of a run that is well."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import Point
from npu_rl.training.monitor.watch import TRANSFER_FACTOR, Limits, Watch

GOOD = {"actor/pg_loss": 0.1, "actor/grad_norm": 0.3, "response_length/mean": 15.0, "timing_s/step": 1.0}


def feed(watch: Watch, *steps: Mapping[str, float]) -> list[list[Alarm]]:
    """Steps from 1 on; the alarms of each."""
    return [watch.point(number, {**GOOD, **data}) for number, data in enumerate(steps, 1)]


def kinds(alarms: list[list[Alarm]]) -> list[list[str]]:
    return [[alarm.kind for alarm in told] for told in alarms]


def score(value: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    return {
        "critic/score/mean": value,
        "critic/score/min": value if low is None else low,
        "critic/score/max": value if high is None else high,
    }


def test_a_run_that_is_well_tells_nothing() -> None:
    watch = Watch(Limits(vocabulary=320))
    told = feed(watch, *(score(0.005 * step, 0, 1) for step in range(1, 100)))
    assert kinds(told) == [[]] * 99


# -- nan -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["critic/score/mean", "actor/pg_loss", "actor/grad_norm", "actor/kl_loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_is_told_once_until_it_is_well_again(key: str, value: float) -> None:
    told = feed(Watch(), {key: value}, {key: value}, {key: 1.0}, {key: value})
    assert kinds(told) == [["nan"], [], [], ["nan"]]
    assert told[0][0].place == key
    assert key in told[0][0].message
    assert "Step 4" in told[3][0].message


def test_a_validation_between_does_not_count_as_well_again() -> None:
    watch = Watch()
    assert [a.kind for a in watch.point(1, {"actor/grad_norm": math.nan})] == ["nan"]
    assert watch.point(1, {"val-core/x/reward/mean@1": 0.5}) == []
    assert watch.point(2, {"actor/grad_norm": math.nan}) == []


# -- constant reward -----------------------------------------------------------------------------------


def test_a_reward_that_never_moves_is_told_at_the_tenth_step() -> None:
    told = feed(Watch(), *[score(-1.0)] * 30)
    assert [number for number, alarms in enumerate(told, 1) if alarms] == [10]
    (alarm,) = told[9]
    assert (alarm.kind, alarm.place) == ("constant-reward", "critic/score/mean")
    assert "never matches" in alarm.cause
    assert "verl#3355" in alarm.cause


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        ([score(0.0)] * 3, "never matches"),
        ([score(1.0)] * 3, "always matches"),
        ([score(0.5, 0, 1)] * 3, "policy is not updated"),
        ([score(0.2), *[score(1.0)] * 3], "task is learnt"),
        ([score(0.2), *[score(0.0)] * 3], "collapsed"),
    ],
)
def test_the_cause_of_a_constant_reward(steps: list[dict[str, float]], cause: str) -> None:
    told = feed(Watch(Limits(constant_steps=3)), *steps)
    assert kinds(told)[-1] == ["constant-reward"]
    assert cause in told[-1][0].cause


def test_it_is_told_again_after_the_reward_has_moved() -> None:
    steps = [score(v) for v in (0, 0, 0, 0.1, 0.1, 0.1, 0.1)]
    told = kinds(feed(Watch(Limits(constant_steps=3)), *steps))
    assert told == [[], [], ["constant-reward"], [], [], ["constant-reward"], []]


def test_a_reward_above_the_goal_may_stay_as_it_is() -> None:
    watch = Watch(Limits(constant_steps=3, goal=0.9))
    assert kinds(feed(watch, *[score(1.0)] * 10)) == [[]] * 10


# -- transfer ------------------------------------------------------------------------------------------


def difference(value: float, **more: float) -> dict[str, float]:
    return {"training/rollout_probs_diff_mean": value, **more}


def test_a_zeroed_tensor_on_the_way_to_the_rollout_is_seen() -> None:
    """The figures of a tiny random model with 320 words: 1.6e-5 when well, 1.3e-4 with o_proj zeroed."""
    watch = Watch(Limits(vocabulary=320))
    told = feed(
        watch,
        difference(1.6e-5, **{"actor/entropy": 5.74}),
        difference(1.3e-4, **{"actor/entropy": 5.74}),
        difference(1.3e-4),
    )
    assert kinds(told) == [[], ["transfer"], []]
    assert "weight sync is wrong" in told[1][0].cause
    assert told[1][0].place == "training/rollout_probs_diff_mean"


def test_the_threshold_scales_with_the_vocabulary() -> None:
    for vocabulary in (320, 129280):
        limit = TRANSFER_FACTOR / vocabulary
        assert kinds(feed(Watch(Limits(vocabulary=vocabulary)), difference(limit * 0.99))) == [[]]
        assert kinds(feed(Watch(Limits(vocabulary=vocabulary)), difference(limit * 1.01))) == [["transfer"]]


def test_a_model_that_has_learnt_may_differ_more() -> None:
    """Its probabilities are no longer near 1/vocabulary."""
    sure = {"actor/entropy": 0.1}
    watch = Watch(Limits(vocabulary=320))
    assert kinds(feed(watch, difference(1e-3, **sure), difference(0.2, **sure))) == [[], ["transfer"]]


def test_a_threshold_of_the_callers_own_goes_first_and_none_is_no_watch() -> None:
    assert kinds(feed(Watch(Limits(transfer=0.5, vocabulary=320)), difference(0.4))) == [[]]
    assert kinds(feed(Watch(), difference(0.4))) == [[]]
    assert kinds(feed(Watch(Limits(transfer=0.5)), difference(math.nan))) == [["transfer"]]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_difference_that_is_not_a_number_is_told_without_a_threshold_too(value: float) -> None:
    steps = [difference(0.002)] * 19 + [difference(value)] * 20 + [difference(0.002), difference(value)]
    found = feed(Watch(), *steps)
    assert [(step, alarm.kind) for step, told in enumerate(found, 1) for alarm in told] == [
        (20, "nan"),
        (41, "nan"),
    ]
    alarm = found[19][0]
    assert alarm.place == "training/rollout_probs_diff_mean" and "no probability" in alarm.cause


def test_the_first_steps_limit_is_judged_after_that_step_alone() -> None:
    watch = Watch(Limits(first_transfer=0.005, transfer=0.02))
    assert kinds(feed(watch, {"actor/lr": 1e-3}, difference(0.004), difference(0.015))) == [[], [], []]
    alarms = feed(Watch(Limits(first_transfer=0.005, transfer=0.02)), difference(0.006))
    assert kinds(alarms) == [["transfer"]] and "(limit 0.005)" in alarms[0][0].message


@pytest.mark.parametrize(
    ("compared", "cause"), [(True, "they compute in different ways"), (False, "weight sync is wrong")]
)
def test_the_cause_of_a_difference_depends_on_whether_the_weights_were_compared(
    compared: bool, cause: str
) -> None:
    watch = Watch(Limits(transfer=0.02, weights_compared=compared))
    assert cause in feed(watch, difference(0.03))[0][0].cause


# -- answers -------------------------------------------------------------------------------------------


def length(mean: float, clipped: float, value: float) -> dict[str, float]:
    return {**score(value, 0, 1), "response_length/mean": mean, "response_length/clip_ratio": clipped}


def test_empty_answers_are_told() -> None:
    told = feed(Watch(), *(length(1.0, 0.0, 0.1 * n) for n in range(5)), length(9.0, 0.0, 0.9))
    assert kinds(told) == [[], [], ["empty-answers"], [], [], []]
    assert told[2][0].place == "response_length/mean"


def test_answers_that_never_end_are_told_unless_the_reward_rises() -> None:
    flat = Watch(Limits(clipped_steps=6, constant_steps=None))
    told = kinds(feed(flat, *(length(16.0, 1.0, 0.5 - 0.01 * n) for n in range(8))))
    assert [number for number, alarms in enumerate(told, 1) if alarms] == [6]
    rising = Watch(Limits(clipped_steps=6))
    assert kinds(feed(rising, *(length(16.0, 1.0, 0.01 * n) for n in range(8)))) == [[]] * 8
    learnt = Watch(Limits(clipped_steps=6, goal=0.9))
    assert kinds(feed(learnt, *[length(16.0, 1.0, 0.99)] * 30)) == [[]] * 30


# -- slow changes --------------------------------------------------------------------------------------


def entropies(*values: float) -> list[dict[str, float]]:
    return [{"actor/entropy": value, **score(0.3, 0.0, 1.0)} for value in values]


def test_an_entropy_that_collapses_before_the_reward_rises_is_told_once() -> None:
    told = feed(Watch(Limits(constant_steps=None)), *entropies(*[0.6] * 12, *[0.03] * 20))
    found = [(step, alarm) for step, alarms in enumerate(told, 1) for alarm in alarms]
    assert [(step, alarm.kind, alarm.step) for step, alarm in found] == [(20, "entropy-collapse", 20)]
    assert "from 0.6 to 0.03" in found[0][1].message and "optimizer.lr" in found[0][1].hint


@pytest.mark.parametrize(
    "steps",
    [
        entropies(*[0.6] * 12, *[0.1] * 30),  # it falls, as it does
        entropies(*[0.6] * 30, 0.001, 0.001, *[0.6] * 10),  # single steps
        [
            {"actor/entropy": 0.6 / n**2, **score(0.02 * n, 0.0, 1.0)} for n in range(1, 45)
        ],  # the reward rises
        [{"actor/entropy": 0.6 / n**2, **score(0.99, 0.0, 1.0)} for n in range(1, 45)],  # it is learnt
    ],
)
def test_an_entropy_that_falls_while_the_policy_learns_is_well(steps: list[dict[str, float]]) -> None:
    assert not any(
        "entropy-collapse" in told for told in kinds(feed(Watch(Limits(constant_steps=None)), *steps))
    )


def test_a_difference_that_rises_is_told_and_one_that_jumps_or_grows_with_the_probabilities_is_not() -> None:
    rising = [difference(0.002)] * 12 + [difference(0.03)] * 12
    told = kinds(feed(Watch(), *rising))
    assert [step for step, alarms in enumerate(told, 1) if alarms] == [20]
    assert told[19] == ["rising-difference"]
    spikes = [difference(0.002 if step % 4 else 0.09) for step in range(60)]
    assert kinds(feed(Watch(), *spikes)) == [[]] * 60
    learning = [difference(0.01 / math.exp(e), **{"actor/entropy": e}) for e in [5.7] * 12 + [0.1] * 20]
    assert not any("rising-difference" in alarms for alarms in kinds(feed(Watch(), *learning)))


# -- fatal ---------------------------------------------------------------------------------------------


def test_a_slow_change_is_told_once_however_its_values_jump() -> None:
    """Only what has gone back clearly and comes again is told again."""
    jump = [math.sin(7.3 * step) for step in range(300)]
    sure = [
        {"actor/entropy": 2 * 0.9 ** min(step, 60) * (1 + 0.1 * up), **score(0.3 + 0.02 * up, 0.0, 1.0)}
        for step, up in enumerate(jump)
    ]
    assert [kind for told in kinds(feed(Watch(), *sure)) for kind in told] == ["entropy-collapse"]
    risen = [difference(0.01 if step < 10 else 0.05 * (1 + 0.1 * up)) for step, up in enumerate(jump)]
    assert [kind for told in kinds(feed(Watch(), *risen)) for kind in told] == ["rising-difference"]
    twice = [*[2.0] * 10, *[0.1] * 12, *[2.0] * 12, *[0.1] * 12]
    told = kinds(feed(Watch(), *({"actor/entropy": one, **score(0.3, 0.0, 1.0)} for one in twice)))
    assert [kind for kinds in told for kind in kinds if kind == "entropy-collapse"] == [
        "entropy-collapse"
    ] * 2


def test_the_caller_says_what_is_fatal() -> None:
    watch = Watch(Limits(constant_steps=1), fatal={"nan"})
    bad, same = watch.point(1, {"actor/grad_norm": math.nan, **score(0.0)})
    assert (bad.fatal, same.fatal) == (True, False)
    assert (watch.is_fatal("nan"), watch.is_fatal("no-progress")) == (True, False)
    assert bad.to_json()["fatal"] is True
    with pytest.raises(ValueError, match="unknown kinds of alarm: speed"):
        Watch(fatal={"speed"})


def test_slow_changes_are_compared_with_the_steps_before_a_resumption() -> None:
    steps = entropies(*(2 * 0.9**n for n in range(40)))
    before = [Point(step, 0.0, data) for step, data in enumerate(steps[:30], 1)]
    watch = Watch(Limits(constant_steps=None))
    watch.go_on_from(before)
    assert ["entropy-collapse"] in kinds(feed(watch, *steps[30:]))
    fresh = Watch(Limits(constant_steps=None))
    assert not any(feed(fresh, *steps[30:]))


def test_a_resumed_run_that_has_reached_its_goal_may_be_sure_of_itself() -> None:
    """Its reward stays where it is, as in the steps before, which raised no alarm either."""
    steps = [
        {"actor/entropy": 2 * 0.97**step, **score(0.86 + 0.02 * math.sin(step), 0.0, 1.0)}
        for step in range(100)
    ]
    limits = Limits(constant_steps=None, goal=0.8)
    assert not any(feed(Watch(limits), *steps))
    watch = Watch(limits)
    watch.go_on_from([Point(step, 0.0, data) for step, data in enumerate(steps[:85], 1)])
    assert not any(feed(watch, *steps[85:]))


def test_an_entropy_that_was_none_at_first_does_not_collapse() -> None:
    assert not any(feed(Watch(Limits(constant_steps=None)), *entropies(*[0.0] * 40)))
