"""What recipes have no keys for is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.code_trees import VERL, check_recipe, lay, megatron, recipe

CRITIC = "a critic is not supported: a recipe has no keys for its model"


@pytest.mark.parametrize(
    ("changes", "key", "why", "fix"),
    [
        (
            {"overrides": {"actor_rollout_ref.rollout.name": "sglang"}},
            "overrides.actor_rollout_ref.rollout.name",
            "the engine sglang is not supported: recipes and plan know the keys and memory of vLLM",
            "set rollout.engine to vllm",
        ),
        (
            {"trainer": {"module": "verl.experimental.fully_async_policy.fully_async_main"}},
            "trainer.module",
            "fully_async_policy is not supported: it trains and generates on devices of their own",
            "leave out trainer.module",
        ),
        (
            {"trainer": {"module": "recipe.one_step_off_policy.main_ppo"}},
            "trainer.module",
            "one_step_off_policy is not supported",
            "leave out trainer.module",
        ),
        (
            {"overrides": {"trainer.v1.trainer_mode": "separate_async"}},
            "overrides.trainer.v1.trainer_mode",
            "the trainer separate_async is not supported: it trains and generates on devices of their own",
            "leave out overrides.trainer.v1.trainer_mode, for sync",
        ),
        (
            {"overrides": {"trainer.use_v1": True, "trainer.v1.trainer_mode": "colocate_async"}},
            "overrides.trainer.v1.trainer_mode",
            "the trainer colocate_async is not supported: it trains on responses that older weights began",
            "leave out overrides.trainer.v1.trainer_mode, for sync",
        ),
        (
            {"overrides": {"actor_rollout_ref.rollout.disaggregation.enabled": True}},
            "overrides.actor_rollout_ref.rollout.disaggregation.enabled",
            "servers of their own for prefill are not supported: verl has none for vLLM on NPUs",
            "leave out overrides.actor_rollout_ref.rollout.disaggregation.enabled",
        ),
        (
            {"algorithm": {"estimator": "gae"}},
            "algorithm.estimator",
            CRITIC,
            "set algorithm.estimator to grpo",
        ),
        (
            {"overrides": {"critic.enable": True}},
            "overrides.critic.enable",
            CRITIC,
            "leave out overrides.critic.enable",
        ),
    ],
)
def test_it_is_refused_with_the_reason(changes: dict[str, Any], key: str, why: str, fix: str) -> None:
    for make in (recipe, megatron):
        (found,) = check_recipe(make(**changes), None).errors
        assert found.rule == "unsupported" and found.where == f"r.yaml:{key}"
        assert why in found.message and found.fix.startswith(fix)


def test_the_configuration_of_such_a_trainer_is_not_looked_for(tmp_path: Path) -> None:
    module = "verl.experimental.fully_async_policy.fully_async_main"
    (found,) = check_recipe(recipe(trainer={"module": module}), lay(tmp_path, VERL)).errors
    assert found.rule == "unsupported"


def test_a_key_the_tree_does_not_know_is_one_error(tmp_path: Path) -> None:
    """verl 0.8 has no trainer.v1."""
    changed = recipe(overrides={"trainer.v1.trainer_mode": "separate_async"})
    (found,) = check_recipe(changed, lay(tmp_path, VERL)).errors
    assert found.rule == "unknown-key"


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"estimator": "gae"}, "overrides": {"critic.enable": False}},
        {"overrides": {"critic.enable": None}},
        {"algorithm": {"estimator": "rloo"}},
        {"trainer": {"module": "recipe.dapo.main_dapo"}},
        {"overrides": {"actor_rollout_ref.rollout.disaggregation.enabled": False}},
        {"overrides": {"trainer.v1.trainer_mode": "sync"}},
        {"overrides": {"trainer.use_v1": False, "trainer.v1.trainer_mode": "separate_async"}},
    ],
)
def test_what_runs_without_a_critic_and_in_step_is_not(changes: dict[str, Any]) -> None:
    assert check_recipe(recipe(**changes), None).errors == []
