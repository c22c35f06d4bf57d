"""Rules on DAPO's penalty for overlong responses and on its filter of groups."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.plan_inputs import PlanInputs

_BUFFER, _FILTER = "reward_model.overlong_buffer", "algorithm.filter_groups"
_METRIC = f"{_FILTER}.metric"
# Of the reward loop's manager (verl/experimental/reward_loop/reward_manager/dapo.py@7aed6b2).
_LOOP = "reward.reward_kwargs"
_LOOP_BUFFER, _LONGEST = f"{_LOOP}.overlong_buffer_cfg", f"{_LOOP}.max_resp_len"


def dapo_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on the settings that DAPO adds to the trainer's."""
    length, response = facts.whole(f"{_BUFFER}.len"), facts.whole("data.max_response_length")
    manager = facts.values.value("reward_model.reward_manager")
    if "dapo" in (manager, facts.values.value("reward.reward_manager.name")) and facts.on(
        f"{_LOOP_BUFFER}.enable"
    ):
        yield _loop_buffer_rule(facts.whole(f"{_LOOP_BUFFER}.len"), facts.whole(_LONGEST), response)
    if manager == "dapo" and length is not None and response:
        least = 1 if facts.on(f"{_BUFFER}.enable") else 0
        yield Rule(
            "overlong-buffer-within-response",
            least <= length <= response,
            f"overlong_buffer.len {length}, data.response_length {response}: the penalty grows over the last "
            "overlong_buffer.len tokens of a response",
            f"set overrides.{_BUFFER}.len to a number from {least} to {response}",
            (f"{_BUFFER}.len", "data.max_response_length"),
        )
    if facts.on(f"{_FILTER}.enable") and facts.values.known(_METRIC):
        metric = facts.values.value(_METRIC)
        yield Rule(
            "filter-groups-metric",
            metric is not None,
            f"filter_groups.enable true, filter_groups.metric {metric}: groups are chosen by the spread of a metric",
            f"set overrides.{_METRIC} to acc, or to seq_reward",
            (_METRIC, f"{_FILTER}.enable"),
        )


def _loop_buffer_rule(length: int | None, longest: int | None, response: int | None) -> Rule:
    ok = length is not None and longest is not None and 0 < length <= longest
    return Rule(
        "overlong-buffer-within-response",
        ok,
        f"overlong_buffer_cfg.len {length}, max_resp_len {longest}, data.response_length {response}: the penalty grows "
        "over the last overlong_buffer_cfg.len tokens of max_resp_len",
        f"set overrides.{_LONGEST} to {response}"
        if longest is None
        else f"set overrides.{_LOOP_BUFFER}.len to a number from 1 to {longest}",
        (_LONGEST if longest is None else f"{_LOOP_BUFFER}.len",),
    )
