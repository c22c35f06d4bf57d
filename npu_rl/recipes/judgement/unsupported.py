"""Features without recipe keys: engines other than vLLM and transformers, asynchronous trainers, critics, prefill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.schema_rollout import Engine
from npu_rl.recipes.recipe.trainer_settings import OVERRIDES, Setting

_ENGINE, _ESTIMATOR, _CRITIC = "actor_rollout_ref.rollout.name", "algorithm.adv_estimator", "critic.enable"
_ENGINES = get_args(Engine)
# refused at verl/workers/config/rollout.py:349@7aed6b2 and, on NPUs, vllm_pd_replica.py:108@8851219
_DISAGGREGATED = "actor_rollout_ref.rollout.disaggregation.enabled"
# verl/experimental/fully_async_policy/fully_async_main.py and one_step_off_policy/main_ppo.py@v0.8.0
_ASYNCHRONOUS = {"fully_async_policy", "one_step_off_policy"}
# the trainers that verl/trainer/ppo/v1 registers beside `sync`: trainer_separate_async.py:39 and
# trainer_colocate_async.py:25@8851219
_V1, _MODE = "trainer.use_v1", "trainer.v1.trainer_mode"
_APART = "trains and generates on devices of their own, and a recipe has one cluster for both"
_ASYNCHRONOUS_MODES = {
    "separate_async": _APART,
    "colocate_async": "trains on responses that older weights began, and recipes and plan know only steps that "
    "generate, then train",
}


class UnsupportedSetting(NamedTuple):
    """A setting that npu-rl can't judge or run: the recipe's key, the trainer's, what it is and why, and a fix."""

    path: KeyPath
    key: str
    message: str
    fix: str


def find_unsupported(recipe: Recipe, given: Mapping[str, Setting]) -> Iterator[UnsupportedSetting]:
    """Yield settings of verl's trainers that recipes have no keys for.

    Args:
        recipe: The recipe.
        given: The last setting of each key of the trainer.
    """
    engine, mode, v1 = given.get(_ENGINE), given.get(_MODE), given.get(_V1)
    if engine is not None and engine.value not in _ENGINES:
        message = (
            f"the engine {engine.value} is not supported: recipes and plan know the keys and memory of vLLM's "
            "engine only"
        )
        yield UnsupportedSetting(engine.path, _ENGINE, message, "set rollout.engine to vllm")
    for program in set(recipe.trainer.module.split(".")) & _ASYNCHRONOUS:
        fix = "leave out trainer.module, for verl.trainer.main_ppo"
        message = f"{program} is not supported: it {_APART}"
        yield UnsupportedSetting(("trainer", "module"), "", message, fix)
    why = _ASYNCHRONOUS_MODES.get(str(mode.value)) if mode is not None else None
    if mode is not None and why and (v1 is None or v1.value is not False):
        message = f"the trainer {mode.value} is not supported: it {why}"
        yield UnsupportedSetting(mode.path, _MODE, message, f"leave out {OVERRIDES}.{_MODE}, for sync")
    apart = given.get(_DISAGGREGATED)
    if apart is not None and apart.value is True:
        message = "separate prefill servers are not supported: verl lacks them for vLLM on NPUs"
        fix = f"leave out {OVERRIDES}.{_DISAGGREGATED}"
        yield UnsupportedSetting(apart.path, _DISAGGREGATED, message, fix)
    # need_critic, verl/trainer/ppo/utils.py:96@v0.8.0
    enable, estimator = given.get(_CRITIC), given.get(_ESTIMATOR)
    unset = enable is None or enable.value is None
    critic = estimator if unset else enable
    if critic is not None and critic.value == ("gae" if unset else True):
        message = (
            "a critic is not supported: a recipe has no keys for its model, batches and optimizer, and plan does "
            "not count its memory"
        )
        fix = "set algorithm.estimator to grpo" if unset else f"leave out overrides.{_CRITIC}"
        yield UnsupportedSetting(critic.path, critic.key, message, fix)
