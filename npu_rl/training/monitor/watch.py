"""Alarms for silent failures, after which the trainer would still exit with status 0."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from npu_rl.training.monitor.alarm import KINDS, Alarm
from npu_rl.training.monitor.metrics import DIFFERENCE, REWARDS, Point, reward
from npu_rl.training.monitor.trends import STEPS, Trend

# The mean difference between the probabilities that rollout and trainer give a chosen token, as a share of one over
# the number of words the policy chooses among, exp(entropy) but at most the vocabulary. Measured on the quickstart's
# model (320 words, bfloat16 on both sides): 0.008 to 0.014 in the first 15 steps, and 0.06 with one o_proj zeroed on
# the way to the rollout. While the policy learns, up to 0.041.
TRANSFER_FACTOR = 0.035
TRANSFER_FACTOR_LEARNING = 0.12
_NEAR_UNIFORM = 0.8  # share of the vocabulary above which the first factor applies
_COLLAPSED = 0.1  # share of the first entropy
_LEAST_ENTROPY = 0.01  # nats per token; a policy that begins below it has nothing to lose
_NEARLY_BEST = 0.95  # share of the best reward of a response, from where the policy may be sure of itself
_RISEN = 5.0  # times the first difference; the quickstart's, as a share of 1 / exp(entropy), rises 4-fold as it learns
_LEAST_DIFFERENCE = 0.01  # of a probability; below it a rise says nothing

_FINITE = (
    *(*REWARDS, "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm"),
    *("critic/vf_loss", "critic/grad_norm"),
)
_OTHER_WEIGHTS = (
    "The weight sync is wrong: a parameter name is skipped, a layout is wrong, or a reshard is missing."
)
_SAME_WEIGHTS = (
    "Both hold the same weights, which were compared at the sync, so they compute in different ways: a scale, a "
    "routing, a temperature or positions that only one of them has."
)
_IN_A_REHEARSAL = (
    "Compare what both sides compute, layer by layer, beginning with what the tree's patches change."
)
_HINTS = {
    "nan": "Stop the run: no later step is of use. Continue from an earlier checkpoint, with a lower optimizer.lr.",
    "constant-reward": "Read the samples of this step; `npu-rl data check` tries the reward on the data.",
    "transfer": "Stop the run, and rehearse the recipe: `--rehearse` compares every tensor of a weight sync.",
    "rising-difference": "Continue from a checkpoint before the rise, with a lower optimizer.lr.",
    "entropy-collapse": "Continue from an earlier checkpoint, with a lower optimizer.lr or a higher temperature.",
    "empty-answers": "Read the samples of this step.",
}


@dataclass(frozen=True)
class Limits:
    """Limits of the alarms; None disables one.

    Attributes:
        constant_steps: Steps with exactly the same mean reward.
        goal: Reward at which the task counts as learnt, and alarms about rewards and responses are off.
        transfer: Highest mean difference of probabilities; by default TRANSFER_FACTOR over the size of the vocabulary,
            so without `vocabulary` it is off.
        first_transfer: Highest mean difference of probabilities in the first step, before an update; None: as later.
        weights_compared: Whether every weight sync is compared, so that a difference must come from elsewhere.
        empty_steps: Steps whose responses have at most one token on average.
        clipped_steps: Steps in which every response reaches the length limit and the reward does not rise.
    """

    constant_steps: int | None = 10
    goal: float | None = None
    transfer: float | None = None
    first_transfer: float | None = None
    weights_compared: bool = False
    vocabulary: int | None = None
    empty_steps: int | None = 3
    clipped_steps: int | None = 20


class Watch:
    """Checks every step. An alarm is raised once, and again only after its condition has cleared."""

    def __init__(self, limits: Limits | None = None, *, fatal: Iterable[str] = ()) -> None:
        """Begin the checks.

        Args:
            fatal: Kinds that end the run.
        """
        self._limits = limits or Limits()
        self._fatal = frozenset(fatal)
        if unknown := self._fatal - set(KINDS):
            raise ValueError(f"unknown kinds of alarm: {', '.join(sorted(unknown))}")
        self._active: set[str] = set()
        self._repeated_reward: tuple[float, int] = (math.nan, 0)  # a reward, and for how many steps
        self._reward_range: tuple[float, float] = (math.inf, -math.inf)  # lowest and highest reward
        self._compared = False  # whether a step has reported a difference of probabilities
        self._empty = 0
        # rewards of the latest steps whose responses were all clipped
        self._clipped = deque[float](maxlen=self._limits.clipped_steps)
        self._entropy, self._rewards = Trend(), deque[float](maxlen=2 * STEPS)
        self._shares, self._differences = Trend(), Trend()

    def is_fatal(self, kind: str) -> bool:
        """Return whether alarms of a kind end the run."""
        return kind in self._fatal

    def go_on_from(self, points: Iterable[Point]) -> None:
        """Take over the steps before a resumption for comparison with slow changes; they raise no alarm."""
        for point in points:
            self._rising_difference(point.step, point.data)
            value = reward(point.data)
            if value is not None and math.isfinite(value):
                self._entropy_collapse(point.step, point.data, value, self._has_learnt(value))
        self._active.clear()

    def point(self, step: int, data: Mapping[str, float]) -> list[Alarm]:
        """Check the metrics of a step."""
        alarms = [self._nan(step, data), self._transfer(step, data), self._rising_difference(step, data)]
        value = reward(data)
        if value is not None and math.isfinite(value):
            learnt = self._has_learnt(value)
            alarms += [
                self._entropy_collapse(step, data, value, learnt),
                self._constant(step, data, value, learnt),
                self._empty_answers(step, data, value, learnt),
            ]
        return [replace(alarm, step=step) for alarm in alarms if alarm is not None]

    def _has_learnt(self, value: float) -> bool:
        return self._limits.goal is not None and value >= self._limits.goal

    def _nan(self, step: int, data: Mapping[str, float]) -> Alarm | None:
        judged = self._transfer_limit(data) is not None  # then NaN is an alarm of its own there
        known = [key for key in (*_FINITE, *(() if judged else (DIFFERENCE,))) if key in data]
        if not known:
            return None  # a validation step
        bad = [key for key in known if not math.isfinite(data[key])]
        listed = ", ".join(f"{key} is {data[key]}" for key in bad)
        cause = "The values overflow: the learning rate or the loss scale is too high, or a weight was not loaded."
        if any(key in REWARDS for key in bad):
            cause = "The reward function returned a value that is not finite for some response."
        elif bad == [DIFFERENCE]:
            cause = "The rollout or the trainer gives sampled tokens no probability: its logits overflow."
        return self._raise_alarm("nan", bool(bad), f"Step {step}: {listed}", cause, bad[0] if bad else "")

    def _transfer(self, step: int, data: Mapping[str, float]) -> Alarm | None:
        difference = data.get(DIFFERENCE)
        if difference is None:
            return None
        first, self._compared = not self._compared, True
        limit = self._transfer_limit(data)
        if first and self._limits.first_transfer is not None:
            limit = self._limits.first_transfer
        if limit is None:
            return None
        return self._raise_alarm(
            "transfer",
            not difference <= limit,  # NaN is an alarm too
            f"Step {step}: rollout and trainer give the response tokens different probabilities: mean difference "
            f"{difference:.2g} (limit {limit:.2g})",
            _SAME_WEIGHTS if self._limits.weights_compared else _OTHER_WEIGHTS,
            DIFFERENCE,
            _IN_A_REHEARSAL if self._limits.weights_compared else None,
        )

    def _transfer_limit(self, data: Mapping[str, float]) -> float | None:
        if self._limits.transfer is not None:
            return self._limits.transfer
        if not self._limits.vocabulary:
            return None
        choices = float(self._limits.vocabulary)
        entropy = _entropy(data, math.nan)
        if math.isfinite(entropy) and entropy >= 0:
            choices = min(choices, math.exp(min(entropy, 700.0)))
        uniform = choices >= _NEAR_UNIFORM * self._limits.vocabulary
        return (TRANSFER_FACTOR if uniform else TRANSFER_FACTOR_LEARNING) / choices

    def _rising_difference(self, step: int, data: Mapping[str, float]) -> Alarm | None:
        """Compare the difference with 1 / exp(entropy), a token's mean probability: both rise as a policy learns."""
        difference, entropy = data.get(DIFFERENCE), _entropy(data, 0.0)
        if difference is None or not math.isfinite(difference) or not math.isfinite(entropy):
            return None
        self._differences.add(difference)
        self._shares.add(difference * math.exp(min(max(entropy, 0.0), 700.0)))
        shares, differences, slack = self._shares.medians, self._differences.medians, self._shares.slack
        if shares is None or differences is None:
            return None
        risen = shares[1] * slack >= _RISEN * shares[0]
        self._shares.is_alarm = risen and differences[1] * slack >= _LEAST_DIFFERENCE
        return self._raise_alarm(
            "rising-difference",
            self._shares.is_alarm,
            f"Step {step}: the difference between the probabilities of rollout and trainer has risen from "
            f"{differences[0]:.2g} to {differences[1]:.2g}",
            "The two compute ever more differently (precision, a scale, a routing), or the policy has become unstable: "
            "updates are then made with probabilities that no response was drawn with.",
            DIFFERENCE,
        )

    def _entropy_collapse(
        self, step: int, data: Mapping[str, float], value: float, learnt: bool
    ) -> Alarm | None:
        """Find a policy that becomes certain of its tokens, and stops exploring, before it has learnt."""
        entropy = _entropy(data, math.nan)
        self._rewards.append(value)
        if not math.isfinite(entropy):
            return None
        self._entropy.add(entropy)
        if self._entropy.medians is None:
            return None
        first, latest = self._entropy.medians
        best = data.get("critic/score/max", data.get("critic/rewards/max", math.inf))
        solved = learnt or 0 < best <= value / _NEARLY_BEST
        low = first >= _LEAST_ENTROPY and latest <= _COLLAPSED * first * self._entropy.slack
        # Only the entropy clears it: the reward's noise would, and raise the alarm again, every few steps.
        self._entropy.is_alarm = low and (self._entropy.is_alarm or not (solved or _rises(self._rewards)))
        return self._raise_alarm(
            "entropy-collapse",
            self._entropy.is_alarm,
            f"Step {step}: the policy's entropy has collapsed from {first:.2g} to {latest:.2g}, and the reward does "
            "not rise",
            "The policy is sure of nearly every token, so all responses to a prompt are alike and GRPO learns nothing.",
            "actor/entropy",
        )

    def _constant(self, step: int, data: Mapping[str, float], value: float, learnt: bool) -> Alarm | None:
        before, count = self._repeated_reward
        self._repeated_reward = (value, count + 1 if value == before else 1)
        low, high = self._reward_range
        self._reward_range = (min(low, value), max(high, value))
        count = self._repeated_reward[1]
        wrong = _reached(self._limits.constant_steps, count) and not learnt
        message = f"Step {step}: the mean reward has been {value:g} for {count} steps"
        return self._raise_alarm(
            "constant-reward", wrong, message, self._why_constant(data, value), _reward_key(data)
        )

    def _why_constant(self, data: Mapping[str, float], value: float) -> str:
        lowest = data.get(_reward_key(data).replace("/mean", "/min"), value)
        highest = data.get(_reward_key(data).replace("/mean", "/max"), value)
        if lowest != highest:
            return (
                "Responses get different rewards, but the mean does not change: the policy is not updated. "
                "Check actor/grad_norm and actor/lr, and the weight sync to the rollout."
            )
        varied = self._reward_range[0] < self._reward_range[1]
        if varied and value >= self._reward_range[1]:
            return "Every response gets the best reward so far: the task is learnt, or the reward is too easy to get."
        if varied:
            return "Training has collapsed: all responses get the same bad reward. The learning rate may be too high."
        if value > 0:
            return "The reward function always matches: every response gets the same reward, so GRPO can't learn."
        return (
            "The reward function never matches, so GRPO can't learn: a wrong format or prompt template, a wrong "
            "data_source, or responses cut off before the result (verl#3355)."
        )

    def _empty_answers(
        self, step: int, data: Mapping[str, float], value: float, learnt: bool
    ) -> Alarm | None:
        length = data.get("response_length/mean")
        self._empty = self._empty + 1 if length is not None and length <= 1 else 0
        if data.get("response_length/clip_ratio") == 1:
            self._clipped.append(value)
        else:
            self._clipped.clear()
        if _reached(self._limits.empty_steps, self._empty):
            return self._raise_alarm(
                "empty-answers",
                not learnt,
                f"Step {step}: responses have {length:g} tokens on average, for {self._empty} steps",
                "The model ends its response at once: the chat template or EOS token is wrong, or the weight sync "
                "failed.",
                "response_length/mean",
            )
        cut = _reached(self._limits.clipped_steps, len(self._clipped)) and not _rises(self._clipped)
        return self._raise_alarm(
            "empty-answers",
            cut and not learnt,
            f"Step {step}: every response has reached the length limit for {len(self._clipped)} steps, and the "
            "reward does not rise",
            "Responses do not end: the length limit is too low, the EOS token is wrong, or the model generates "
            "nonsense. Read the samples.",
            "response_length/clip_ratio",
        )

    def _raise_alarm(
        self, kind: str, wrong: bool, message: str, cause: str, place: str, hint: str | None = None
    ) -> Alarm | None:
        if not wrong:
            self._active.discard(kind)
            return None
        if kind in self._active:
            return None
        self._active.add(kind)
        return Alarm(kind, message, cause, place, kind in self._fatal, hint or _HINTS[kind])


def _reward_key(data: Mapping[str, float]) -> str:
    return next((key for key in REWARDS if key in data), REWARDS[0])


def _reached(limit: int | None, count: int) -> bool:
    return limit is not None and count >= limit


def _entropy(data: Mapping[str, float], default: float) -> float:
    return data.get("actor/entropy", data.get("actor/entropy_loss", default))


def _rises(values: Iterable[float]) -> bool:
    """Return whether the later half of the values is higher on average."""
    listed = list(values)
    half = len(listed) // 2
    return half > 0 and statistics.fmean(listed[-half:]) > statistics.fmean(listed[:half])
