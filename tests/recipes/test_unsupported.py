"""What recipes have no keys for is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.code_trees import VERL, check_recipe, lay, megatron, recipe

CRITIC = "a critic is not supported: a recipe has no keys for its model"
APART = "trains and generates on devices of their own"
FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
MODE, PREFILL = "trainer.v1.trainer_mode", "actor_rollout_ref.rollout.disaggregation.enabled"
ENGINE, V1 = "overrides.actor_rollout_ref.rollout.name", {"trainer.use_v1": True}
CASES: dict[str, tuple[str, Any, str, str]] = {
    "engine": (ENGINE, "sglang", "the engine sglang is not supported", "set rollout.engine to vllm"),
    "async": ("trainer.module", FULLY_ASYNC, f"fully_async_policy is not supported: it {APART}", ""),
    "one step": ("trainer.module", "recipe.one_step_off_policy.main_ppo", "one_step_off_policy is not", ""),
    "apart": (
        f"overrides.{MODE}",
        "separate_async",
        f"separate_async is not supported: it {APART}",
        ", for sync",
    ),
    "older": (f"overrides.{MODE}", "colocate_async", "responses that older weights began", ", for sync"),
    "prefill": (f"overrides.{PREFILL}", True, "separate prefill servers are not supported", ""),
    "gae": ("algorithm.estimator", "gae", CRITIC, "set algorithm.estimator to grpo"),
    "critic": ("overrides.critic.enable", True, CRITIC, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_the_reason(case: str) -> None:
    key, value, why, fix = CASES[case]
    section, _, name = key.partition(".")
    more = V1 if value == "colocate_async" else {}
    for make in (recipe, megatron):
        (found,) = check_recipe(make(**{section: {name: value, **more}}), None).errors
        assert found.rule == "unsupported" and found.where == f"r.yaml:{key}"
        assert why in found.message
        assert found.fix.startswith(fix if fix.startswith("set ") else f"leave out {key}{fix}")


def test_the_configuration_of_such_a_trainer_is_not_looked_for(tmp_path: Path) -> None:
    (found,) = check_recipe(recipe(trainer={"module": FULLY_ASYNC}), lay(tmp_path, VERL)).errors
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
