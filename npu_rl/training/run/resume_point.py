"""The step that `--resume` continues from: the newest complete one in this node's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.training.record.attempt import write_private
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import LATEST
from npu_rl.training.record.saved_checkpoints.saved_steps import (
    DATA,
    UNWHOLE_DATA,
    RoleFiles,
    SavedLayout,
    saved_steps,
)

_ALL = ("model", "optimizer", "extra")  # verl/utils/checkpoint/checkpoint_manager.py:57@55e3c5b
_SIZES = ("tensor_model", "pipeline_model", "context", "expert_model")


@dataclass(frozen=True)
class ResumePoint:
    """A step to resume from.

    Attributes:
        step: The newest whole one; None if there is no checkpoint.
        newer: What is wrong with each newer one.
        older: The other whole ones.
        deletes: Whether the trainer deletes old checkpoints.
    """

    step: int | None
    newer: tuple[str, ...] = ()
    older: tuple[int, ...] = ()
    deletes: bool = False


def resume_point(record: RunRecord, recipe: Recipe, config: Mapping[str, Any]) -> ResumePoint:
    """Return the step to resume from.

    Args:
        record: The record of a run of verl's.
        recipe: The run's recipe.
        config: The trainer's composed configuration.

    Raises:
        NpuRlError: If checkpoints are there, and none is whole.
    """
    found = saved_steps(record.checkpoints, saved_layout(recipe, config))
    whole = [step for step, fault in found.items() if not fault]
    newest = max(whole, default=None)
    newer = tuple(
        f"step {step} is not whole: {fault}"
        for step, fault in reversed(found.items())
        if newest is None or step > newest
    )
    if newest is None and newer:
        more = [f"and {len(newer) - 5} more"] if len(newer) > 5 else []
        raise NpuRlError(
            f"Run {record.name} has no complete checkpoint to resume from",
            where=str(record.checkpoints),
            why="\n".join([*newer[:5], *more, "whole: none"]),
            hint="Bring the missing files back, or begin a run of another name: name=…",
        )
    keep = _at(config, "trainer").get("max_actor_ckpt_to_keep")
    older = tuple(step for step in whole if step != newest)
    return ResumePoint(newest, newer, older, isinstance(keep, int) and keep > 0)


def go_on_from(record: RunRecord, point: ResumePoint, notify: Callable[[str], None]) -> None:
    """Make the trainer resume from a step.

    verl reads the tracker whatever its resume_mode (find_latest_ckpt_path, verl/trainer/ppo/ray_trainer.py:999@v0.5.0)
    and ends with ValueError if a crash left it empty: it is written by open("w"). A newer step that is not whole loses
    its data.pt: the resumed run writes the step again, into the same files, and a second crash would leave a mixture.
    """
    step = point.step
    assert step is not None
    for text in point.newer:
        notify(f"{text}; whole: {', '.join(map(str, (*point.older, step)))}")
    for folder in record.checkpoints.glob("global_step_*"):
        number = folder.name.removeprefix("global_step_")
        if number.isdecimal() and int(number) > step and (folder / DATA).exists():
            with disk_errors(folder):
                (folder / DATA).replace(folder / UNWHOLE_DATA)
    recorded = record.recorded_checkpoint
    if recorded != step:
        notify(
            f"the trainer recorded {'no step' if recorded is None else f'step {recorded}'}; resuming from {step}"
        )
        with disk_errors(record.checkpoints):
            write_private(record.checkpoints / LATEST, str(step).encode())
    if point.deletes and point.older:
        # previous_saved_paths of verl's managers is empty in a new process (checkpoint_manager.py:63@v0.5.0).
        stay = ", ".join(map(str, (*point.older, step)))
        notify(f"checkpoints of earlier attempts stay, since the trainer deletes only its own: steps {stay}")


def saved_layout(recipe: Recipe, config: Mapping[str, Any]) -> SavedLayout:
    """Return the layout of a run's checkpoints from the trainer's composed configuration."""
    actor = _at(config, "actor_rollout_ref", "actor")
    roles = [_role("actor", actor, recipe.actor.strategy)]
    if _at(config, "algorithm").get("adv_estimator") == "gae":
        roles.append(_role("critic", _at(config, "critic"), recipe.actor.strategy))
    return SavedLayout(tuple(roles), recipe.cluster.world, recipe.cluster.dies)


def _role(name: str, model: Mapping[str, Any], strategy: str) -> RoleFiles:
    checkpoint = _at(model, "checkpoint")
    given = checkpoint.get("load_contents", checkpoint.get("contents"))
    contents = tuple(map(str, given)) if isinstance(given, list | tuple) else _ALL
    kind: Literal["fsdp", "torch_dist", "legacy"] = "fsdp"
    if str(model.get("strategy", strategy)) == "megatron":
        # verl 54c9b73 has one key, `contents`, and Megatron's files by rank; later ones have dist checkpoints.
        kind = "legacy" if "contents" in checkpoint and "load_contents" not in checkpoint else "torch_dist"
    megatron = _at(model, "megatron")
    tensor, pipeline, context, expert = (_size(megatron.get(f"{one}_parallel_size")) for one in _SIZES)
    return RoleFiles(name, kind, contents, (tensor, pipeline, context, expert))


def _at(config: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        value = config.get(name)
        config = value if isinstance(value, Mapping) else {}
    return config


def _size(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1
