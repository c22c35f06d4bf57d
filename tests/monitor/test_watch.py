"""What goes wrong in silence is told once, with a cause, and nothing is told of a run that is well."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import Point
from npu_rl.training.monitor.watch import TRANSFER_FACTOR, Limits, Watch

GOOD = {"actor/pg_loss": 0.1, "actor/grad_norm": 0.3, "response_length/mean": 15.0, "timing_s/step": 1.0}
JUMPS = [math.sin(7.3 * step) for step in range(300)]


def feed(watch: Watch, steps: Iterable[Mapping[str, float]]) -> list[Alarm]:
    """Return the alarms of steps from 1 on."""
    return [alarm for number, data in enumerate(steps, 1) for alarm in watch.point(number, {**GOOD, **data})]


def told(limits: Limits, steps: Iterable[Mapping[str, float]]) -> list[tuple[int | None, str]]:
    return [(alarm.step, alarm.kind) for alarm in feed(Watch(limits), steps)]


def score(value: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    least, most = value if low is None else low, value if high is None else high
    return {"critic/score/mean": value, "critic/score/min": least, "critic/score/max": most}


def difference(value: float, **more: float) -> dict[str, float]:
    return {"training/rollout_probs_diff_mean": value, **more}


def length(mean: float, clipped: float, value: float) -> dict[str, float]:
    return {**score(value, 0, 1), "response_length/mean": mean, "response_length/clip_ratio": clipped}


def entropy(value: float, reward: float = 0.3) -> dict[str, float]:
    return {"actor/entropy": value, **score(reward, 0.0, 1.0)}


def test_a_run_that_is_well_tells_nothing() -> None:
    assert told(Limits(vocabulary=320), (score(0.005 * step, 0, 1) for step in range(1, 100))) == []


NO_REWARDS, SMALL = Limits(constant_steps=None), Limits(vocabulary=320)
FEW = Limits(constant_steps=3, goal=0.9, clipped_steps=6)
LEARNING = [difference(0.01 / math.exp(e), **{"actor/entropy": e}) for e in [5.7] * 12 + [0.1] * 20]
RISEN = [difference(0.01 if step < 10 else 0.05 * (1 + 0.1 * up)) for step, up in enumerate(JUMPS)]
SURE = [entropy(2 * 0.9 ** min(s, 60) * (1 + 0.1 * up), 0.3 + 0.02 * up) for s, up in enumerate(JUMPS)]


@pytest.mark.parametrize(
    ("limits", "steps", "expected"),
    [
        # a number that is none is told once until it is well again; a validation in between does not count
        (
            Limits(),
            [{"actor/pg_loss": math.nan}] * 2 + [{}, {"actor/pg_loss": math.inf}],
            [(1, "nan"), (4, "nan")],
        ),
        # a reward that does not move, until it has moved; above the goal it may stay
        (Limits(), [score(-1.0)] * 30, [(10, "constant-reward")]),
        (FEW, [score(v) for v in (0, 0, 0, 0.1, 0.1, 0.1)], [(3, "constant-reward"), (6, "constant-reward")]),
        (FEW, [score(1.0)] * 10, []),
        # a zeroed o_proj on the way to the rollout: a random model of 320 words has 1.6e-5 when well, 1.3e-4 with it
        (SMALL, [difference(1.6e-5), difference(1.3e-4), difference(1.3e-4)], [(2, "transfer")]),
        (SMALL, [difference(d, **{"actor/entropy": 0.1}) for d in (1e-3, 0.2)], [(2, "transfer")]),
        (Limits(), [difference(0.4)], []),
        (Limits(transfer=0.5, vocabulary=320), [difference(0.4), difference(math.nan)], [(2, "transfer")]),
        (Limits(), [difference(v) for v in (0.002, math.nan, math.inf)], [(2, "nan")]),
        # the first step has its own limit, and is the first that has a difference
        (Limits(first_transfer=0.005, transfer=0.02), [{}, difference(0.004), difference(0.015)], []),
        (Limits(first_transfer=0.005, transfer=0.02), [difference(0.006)], [(1, "transfer")]),
        # responses that are empty, and that never end while the reward does not rise
        (Limits(), [length(1.0, 0.0, 0.1 * n) for n in range(5)], [(3, "empty-answers")]),
        (FEW, [length(16.0, 1.0, 0.5 - 0.01 * n) for n in range(8)], [(6, "empty-answers")]),
        (FEW, [length(16.0, 1.0, 0.01 * n) for n in range(8)], []),
        (FEW, [length(16.0, 1.0, 0.99)] * 30, []),
        # an entropy that collapses, also by jumps; falls, as it does; jumps; begins at nothing; falls as it learns
        (NO_REWARDS, [entropy(v) for v in [0.6] * 12 + [0.03] * 20], [(20, "entropy-collapse")]),
        (NO_REWARDS, SURE, [(33, "entropy-collapse")]),
        (NO_REWARDS, [entropy(v) for v in [0.6] * 12 + [0.1] * 30], []),
        (NO_REWARDS, [entropy(v) for v in [0.6] * 30 + [0.001] * 2 + [0.6] * 10], []),
        (NO_REWARDS, [entropy(0.0)] * 40, []),
        (NO_REWARDS, [entropy(0.6 / n**2, 0.02 * n) for n in range(1, 45)], []),
        (NO_REWARDS, [entropy(0.6 / n**2, 0.99) for n in range(1, 45)], []),
        # a difference that rises; one that jumps, or grows with the probabilities of a policy that learns
        (Limits(), [difference(0.002)] * 12 + [difference(0.03)] * 12, [(20, "rising-difference")]),
        (Limits(), RISEN, [(21, "rising-difference")]),
        (Limits(), [difference(0.002 if step % 4 else 0.09) for step in range(60)], []),
        (Limits(), LEARNING, []),
    ],
)
def test_what_is_told(
    limits: Limits, steps: list[Mapping[str, float]], expected: list[tuple[int, str]]
) -> None:
    assert told(limits, steps) == expected


def test_a_slow_change_is_told_again_after_it_has_gone_back_clearly() -> None:
    twice = [*[2.0] * 10, *[0.1] * 12, *[2.0] * 12, *[0.1] * 12]
    assert [kind for _, kind in told(NO_REWARDS, map(entropy, twice))] == ["entropy-collapse"] * 2


def test_a_validation_between_does_not_count_as_well_again() -> None:
    watch = Watch()
    assert [a.kind for a in watch.point(1, {"actor/grad_norm": math.nan})] == ["nan"]
    assert watch.point(1, {"val-core/x/reward/mean@1": 0.5}) == []
    assert watch.point(2, {"actor/grad_norm": math.nan}) == []


def test_the_threshold_scales_with_the_vocabulary() -> None:
    for vocabulary in (320, 129280):
        limit = TRANSFER_FACTOR / vocabulary
        assert told(Limits(vocabulary=vocabulary), [difference(limit * 0.99)]) == []
        assert told(Limits(vocabulary=vocabulary), [difference(limit * 1.01)]) == [(1, "transfer")]


@pytest.mark.parametrize(
    ("limits", "steps", "cause"),
    [
        (FEW, [score(0.0)] * 3, "never matches"),
        (FEW, [score(0.5, 0, 1)] * 3, "policy is not updated"),
        (Limits(constant_steps=3), [score(1.0)] * 3, "always matches"),
        (Limits(constant_steps=3), [score(0.2), *[score(1.0)] * 3], "task is learnt"),
        (FEW, [score(0.2), *[score(0.0)] * 3], "collapsed"),
        (Limits(transfer=0.02, weights_compared=True), [difference(0.03)], "they compute in different ways"),
        (Limits(transfer=0.02), [difference(0.03)], "weight sync is wrong"),
        (Limits(), [difference(math.nan)], "no probability"),
    ],
)
def test_the_cause(limits: Limits, steps: list[Mapping[str, float]], cause: str) -> None:
    (alarm,) = feed(Watch(limits), steps)
    assert cause in alarm.cause and alarm.hint
    assert alarm.place in ("critic/score/mean", "training/rollout_probs_diff_mean")


def test_the_caller_says_what_is_fatal() -> None:
    watch = Watch(Limits(constant_steps=1), fatal={"nan"})
    bad, same = watch.point(1, {"actor/grad_norm": math.nan, **score(0.0)})
    assert (bad.fatal, same.fatal) == (True, False)
    assert (watch.is_fatal("nan"), watch.is_fatal("no-progress")) == (True, False)
    with pytest.raises(ValueError, match="unknown kinds of alarm: speed"):
        Watch(fatal={"speed"})


def resumed(limits: Limits, steps: list[Mapping[str, float]], at: int) -> list[Alarm]:
    watch = Watch(limits)
    watch.go_on_from(Point(step, 0.0, dict(data)) for step, data in enumerate(steps[:at], 1))
    return feed(watch, steps[at:])


def test_slow_changes_are_compared_with_the_steps_before_a_resumption() -> None:
    falling: list[Mapping[str, float]] = [entropy(2 * 0.9**n) for n in range(40)]
    assert [alarm.kind for alarm in resumed(NO_REWARDS, falling, 30)] == ["entropy-collapse"]
    assert resumed(NO_REWARDS, falling[30:], 0) == []
    # a run that has reached its goal may be sure of itself, as in the steps before
    learnt: list[Mapping[str, float]] = [
        entropy(2 * 0.97**step, 0.86 + 0.02 * math.sin(step)) for step in range(100)
    ]
    assert resumed(Limits(constant_steps=None, goal=0.8), learnt, 85) == []
