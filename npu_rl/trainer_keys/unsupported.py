"""What recipes have no keys for: other engines than vLLM and transformers, asynchronous trainers, a critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from npu_rl.config.problems import KeyPath
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.schema_rollout import Engine
from npu_rl.recipes.trainer_settings import Setting

_ENGINE, _ESTIMATOR, _CRITIC = "actor_rollout_ref.rollout.name", "algorithm.adv_estimator", "critic.enable"
_ENGINES = get_args(Engine)
# verl/experimental/fully_async_policy/fully_async_main.py and one_step_off_policy/main_ppo.py@v0.8.0
_ASYNCHRONOUS = ("fully_async_policy", "one_step_off_policy")


@dataclass(frozen=True)
class UnsupportedSetting:
    """A setting of a recipe that npu-rl can't judge or run.

    Attributes:
        path: The recipe's key.
        key: The trainer's key; empty for one that only npu-rl reads.
        message: What it is, and the reason.
        fix: What to write instead.
    """

    path: KeyPath
    key: str
    message: str
    fix: str = ""


def find_unsupported(recipe: Recipe, given: Mapping[str, Setting]) -> Iterator[UnsupportedSetting]:
    """Yield the settings that a recipe for verl's trainers has no keys for.

    Args:
        recipe: The recipe.
        given: The last setting of each key of the trainer.
    """
    engine = given.get(_ENGINE)
    if engine is not None and engine.value not in _ENGINES:
        message = (
            f"the engine {engine.value} is not supported: recipes and plan know the keys and memory of vLLM's "
            "engine only"
        )
        yield UnsupportedSetting(engine.path, _ENGINE, message, "set rollout.engine to vllm")
    program = next((part for part in recipe.trainer.module.split(".") if part in _ASYNCHRONOUS), None)
    if program is not None:
        message = (
            f"{program} is not supported: it trains and generates on devices of their own, and a recipe has one "
            "cluster for both"
        )
        fix = "leave out trainer.module, for verl.trainer.main_ppo"
        yield UnsupportedSetting(("trainer", "module"), "", message, fix)
    critic = _critic(given)
    if critic is not None:
        message = (
            "a critic is not supported: a recipe has no keys for its model, batches and optimizer, and plan does "
            "not count its memory"
        )
        own = critic.key == _ESTIMATOR
        fix = "set algorithm.estimator to grpo" if own else f"leave out overrides.{_CRITIC}"
        yield UnsupportedSetting(critic.path, critic.key, message, fix)


def _critic(given: Mapping[str, Setting]) -> Setting | None:
    """Return the setting that makes the trainer build a critic (need_critic, verl/trainer/ppo/utils.py:96@v0.8.0)."""
    enable, estimator = given.get(_CRITIC), given.get(_ESTIMATOR)
    if enable is not None and enable.value is not None:
        return enable if enable.value is True else None
    return estimator if estimator is not None and estimator.value == "gae" else None
