"""Hooks of the driver: each step's batch is recomputed before it is sent to the update.

verl computes advantages in a function of the trainer's module, which recipe.dapo imports and cann-recipes-train
replaces (verl/trainer/ppo/ray_trainer.py, recipe/dapo/dapo_ray_trainer.py@796871d, verl_patches/trainer/ppo/
ray_trainer.py@bcd3be7). Its result is checked there, and again as it is sent to the update if it differs by then.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from npu_rl_standins.hooks import after_import

_TRAINERS = ("verl.trainer.ppo.ray_trainer", "verl_patches.trainer.ppo.ray_trainer")

_watched: list[Any] = []
"""The check of this process's trainer."""


def install() -> None:
    """Watch the trainers of verl and cann-recipes-train, the data, and comparisons of answers with a time limit."""
    for module in _TRAINERS:
        after_import(module, _watch_trainer)
    after_import("verl.utils.dataset.rl_dataset", _watch_data)
    after_import("npu_rl_runtime.deepscaler.pool", _watch_comparisons)


def _watch_trainer(module: Any) -> None:
    """Watch the module's trainer class, if it has one of its own, and its function for advantages."""
    trainer_class = vars(module).get("RayPPOTrainer")
    if trainer_class is not None and trainer_class.__module__ == module.__name__:
        _watch_class(trainer_class)
    upstream = module.compute_advantage

    @functools.wraps(upstream)
    def compute_advantage(*arguments: Any, **named: Any) -> Any:
        data = upstream(*arguments, **named)
        if _watched:
            _watched[0].check(data)
        return data

    module.compute_advantage = compute_advantage


def _watch_class(trainer_class: Any) -> None:
    upstream = trainer_class.__init__

    @functools.wraps(upstream)
    def __init__(trainer: Any, *arguments: Any, **named: Any) -> None:
        from .step_check import StepCheck

        upstream(trainer, *arguments, **named)
        check = StepCheck(trainer)
        _watched[:] = [check]

        def init_workers(*arguments: Any, **named: Any) -> Any:
            # By the class: cann-recipes-train replaces its method.
            result = type(trainer).init_workers(trainer, *arguments, **named)
            check.watch_workers()
            return result

        trainer.init_workers = init_workers

    trainer_class.__init__ = __init__


def _watch_data(module: Any) -> None:
    upstream = module.RLHFDataset.__getitem__

    @functools.wraps(upstream)
    def __getitem__(dataset: Any, item: Any) -> Any:
        row = upstream(dataset, item)
        if _watched:
            _watched[0].read(row)
        return row

    module.RLHFDataset.__getitem__ = __getitem__


def _watch_comparisons(module: ModuleType) -> None:
    upstream = module.verdicts

    @functools.wraps(upstream)
    def verdicts(*arguments: Any, **named: Any) -> Any:
        found = upstream(*arguments, **named)
        if _watched:
            _watched[0].late += found.count(module.LIMIT)
        return found

    module.verdicts = verdicts  # type: ignore[attr-defined]
