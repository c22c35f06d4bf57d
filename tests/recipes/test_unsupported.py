"""What recipes have no keys for is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.code_trees import check_recipe, megatron, recipe

CRITIC = "a critic is not supported: a recipe has no keys for its model"
APART = "trains and generates on devices of their own"
FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
MODE, PREFILL = "trainer.v1.trainer_mode", "actor_rollout_ref.rollout.disaggregation.enabled"
ENGINE, V1 = "overrides.actor_rollout_ref.rollout.name", {"trainer.use_v1": True}
CASES: dict[str, tuple[str, Any, str, str]] = {
    "engine": (ENGINE, "sglang", "the engine sglang is not supported", "set rollout.engine to vllm"),
    "async": ("trainer.module", FULLY_ASYNC, f"fully_async_policy is not supported: it {APART}", ""),
    "apart": (
        f"overrides.{MODE}",
        "separate_async",
        f"separate_async is not supported: it {APART}",
        ", for sync",
    ),
    "prefill": (f"overrides.{PREFILL}", True, "separate prefill servers are not supported", ""),
    "gae": ("algorithm.estimator", "gae", CRITIC, "set algorithm.estimator to grpo"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_the_reason(case: str) -> None:
    key, value, why, fix = CASES[case]
    section, _, name = key.partition(".")
    for make in (recipe, megatron):
        (found,) = check_recipe(make(**{section: {name: value}}), None).errors
        assert found.rule == "unsupported" and found.where == f"r.yaml:{key}"
        assert why in found.message
        assert found.fix.startswith(fix if fix.startswith("set ") else f"leave out {key}{fix}")


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"estimator": "gae"}, "overrides": {"critic.enable": False}},
        {"trainer": {"module": "recipe.dapo.main_dapo"}},
        {"overrides": {"trainer.use_v1": False, "trainer.v1.trainer_mode": "separate_async"}},
    ],
)
def test_what_runs_without_a_critic_and_in_step_is_not(changes: dict[str, Any]) -> None:
    assert check_recipe(recipe(**changes), None).errors == []
