"""Features without recipe keys: engines other than vLLM and transformers, asynchronous trainers, critics, prefill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_rollout import Engine
from npu_rl.recipes.recipe.trainer_settings import OVERRIDES, Setting

_ENGINE, _ESTIMATOR, _CRITIC = "actor_rollout_ref.rollout.name", "algorithm.adv_estimator", "critic.enable"
_ENGINES = get_args(Engine)
# refused at verl/workers/config/rollout.py:349@7aed6b2 and, on NPUs, vllm_pd_replica.py:108@8851219
_DISAGGREGATED = "actor_rollout_ref.rollout.disaggregation.enabled"
# verl/experimental/fully_async_policy/fully_async_main.py and one_step_off_policy/main_ppo.py@v0.8.0
_ASYNCHRONOUS = ("fully_async_policy", "one_step_off_policy")
# the trainers that verl/trainer/ppo/v1 registers beside `sync`: trainer_separate_async.py:39 and
# trainer_colocate_async.py:25@8851219
_V1, _MODE = "trainer.use_v1", "trainer.v1.trainer_mode"
_APART = "trains and generates on devices of their own, and a recipe has one cluster for both"
_ASYNCHRONOUS_MODES = {
    "separate_async": _APART,
    "colocate_async": "trains on responses that older weights began, and recipes and plan know only steps that "
    "generate, then train",
}


@dataclass(frozen=True)
class UnsupportedSetting:
    """A recipe setting that npu-rl can't judge or run.

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
    """Yield settings of verl's trainers that recipes have no keys for.

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
        message = f"{program} is not supported: it {_APART}"
        fix = "leave out trainer.module, for verl.trainer.main_ppo"
        yield UnsupportedSetting(("trainer", "module"), "", message, fix)
    mode, v1 = given.get(_MODE), given.get(_V1)
    why = _ASYNCHRONOUS_MODES.get(str(mode.value)) if mode is not None else None
    if mode is not None and why and (v1 is None or v1.value is not False):
        message = f"the trainer {mode.value} is not supported: it {why}"
        yield UnsupportedSetting(mode.path, _MODE, message, f"leave out {OVERRIDES}.{_MODE}, for sync")
    apart = given.get(_DISAGGREGATED)
    if apart is not None and apart.value is True:
        message = "separate prefill servers are not supported: verl lacks them for vLLM on NPUs"
        yield UnsupportedSetting(
            apart.path, _DISAGGREGATED, message, f"leave out {OVERRIDES}.{_DISAGGREGATED}"
        )
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
