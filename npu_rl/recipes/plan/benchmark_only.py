"""Settings that make a run useless as training. A recipe with one of them must set `benchmark: true`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import Setting

_A, _F = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_RANDOM = "the weights stay random, and the actor's are not the reference's"
_FIXED = "tokens don't go to the experts the router chose"
# Key of the trainer -> the value that makes the run useless, and what it does. Sources: verl@55e3c5b,
# verl/workers/megatron_workers.py:311,342 (load_weight) and verl/workers/config/rollout.py (ignore_eos);
# cann-recipes-train@bcd3be7, deepseek/verl_patches/scripts/internal/*_random_init.sh.
_KEYS: Mapping[str, tuple[bool, str]] = {
    "actor_rollout_ref.rollout.ignore_eos": (True, "responses don't stop at their end"),
    f"{_A}.load_weight": (False, _RANDOM),
    f"{_F}.load_weight": (False, _RANDOM),
    f"{_A}.megatron.fix_router": (True, _FIXED),
}
# Read by vllm-ascend from its request 2058 on (vllm_ascend/ops/fused_moe.py:945@f20869ef), not by v0.9.1rc2.
_FIXED_ROUTES_VARIABLE = "VLLM_ENABLE_FIX_ROUTE"
HINT = "set benchmark to true if the run is only to be timed"


@dataclass(frozen=True)
class BenchmarkSetting:
    """A setting that real training must not have.

    Attributes:
        path: The recipe's key.
        key: The trainer's key, "" if there is none.
    """

    path: tuple[str | int, ...]
    key: str
    message: str


def find_benchmark_settings(recipe: Recipe, given: Mapping[str, Setting]) -> Iterator[BenchmarkSetting]:
    """Yield the settings that make the recipe a benchmark.

    The tiny model is random anyway, so random weights are not reported for it.

    Args:
        given: The last setting of each key, overrides included.
    """
    for key, (bad, why) in _KEYS.items():
        setting = given.get(key)
        if setting is None or setting.value is not bad or (why is _RANDOM and recipe.model.make):
            continue
        yield BenchmarkSetting(setting.path, key, f"{str(bad).lower()} means that {why}")
    if recipe.env.get(_FIXED_ROUTES_VARIABLE, "0") not in ("", "0"):
        yield BenchmarkSetting(
            ("env", _FIXED_ROUTES_VARIABLE), "", f"{recipe.env[_FIXED_ROUTES_VARIABLE]} means that {_FIXED}"
        )
