"""The level *rollout*: vLLM's V1 engine in the loop, on two ranks, from a checkpoint our converter made."""

from __future__ import annotations

from npu_rl.errors import NpuRlError, RecipeError
from npu_rl.rehearsal.dist_checkpoint import DistCheckpoint, converted
from npu_rl.rehearsal.level_train import attempt_small, has_mindspeed, read_curve
from npu_rl.rehearsal.rehearsal_report import TrainPart
from npu_rl.rehearsal.scale_rollout import Case, scaled_rollout
from npu_rl.training import interpreter, tiny_model, train
from npu_rl.training.monitor.screen import Screen
from npu_rl.training.monitor.watch import DIFFERENCE
from npu_rl.training.prepare import Prepared
from npu_rl.training.run_record import RunRecord
from npu_rl.training.vllm_environment import REQUIREMENTS

FIRST, TRANSFER = 0.005, 0.02
"""How far rollout and actor may differ in a token's probability, on average over a step: in the first, on the
weights of the checkpoint, and later.

Measured: 0.0005 in the first, as transformers in bfloat16 differs from float32; up to 0.009 while the tiny model
learns, when a rounding sends a token to another expert; 0.052 with one o_proj lost on the way, and 0.018 in the first
while the actor routed and scaled its attention in another way than the model."""

_NEEDED = ("vllm", "mindspeed", "npu_rl_runtime/converter", "npu_rl_runtime/rollout_offload")


def can_rehearse_rollout(prepared: Prepared) -> bool:
    """Whether recipe and tree have what this level is about: Megatron with MindSpeed, vLLM, and our adaptations."""
    return prepared.recipe.rollout.engine == "vllm" and has_mindspeed(prepared) and not _lacking(prepared)


def rehearse_rollout(prepared: Prepared, record: RunRecord, case: Case, screen: Screen) -> TrainPart:
    """What came of one case. Raises train.Stopped if a person ends it."""
    recipe, changed = scaled_rollout(prepared.recipe, record.name, case)
    part = TrainPart(changed=changed, run=str(record.folder))
    try:
        _demand(prepared)
        checkpoint = _checkpoint(prepared.with_recipe(recipe), record, screen)
        part.usage.append(checkpoint.usage)
        model = recipe.model.model_copy(update={"checkpoint": str(checkpoint.folder)})
        small = prepared.with_recipe(recipe.model_copy(update={"model": model}))
        attempt_small(small, record, screen, part, transfer=TRANSFER)
        _demand_agreement(record)
    except train.RunStopped:
        raise
    except NpuRlError as error:
        part.failure = str(error)
    read_curve(part, record)
    return part


def _checkpoint(small: Prepared, record: RunRecord, screen: Screen) -> DistCheckpoint:
    """The tiny model, and from it a dist checkpoint by the tree's own converter, on as many ranks as train."""
    runs = record.folder.parent
    place = tiny_model.model_folder(runs, small.recipe, small.interpreter)
    command = small.command(runs, record.id, 1, None)
    screen.stage("making the model and the data")
    tiny_model.make(place, small.recipe, small.interpreter, command.environment)
    screen.stage("converting the model to a Megatron checkpoint")
    return converted(small, place, command.environment)


def _demand_agreement(record: RunRecord) -> None:
    found = [point.data[DIFFERENCE] for point in record.curve() if DIFFERENCE in point.data]
    if not found or not found[0] <= FIRST:
        raise NpuRlError(
            f"Rollout and actor disagree on the checkpoint's own weights: by {found[0]:.2g} in a token's probability "
            f"(limit {FIRST:g})"
            if found
            else "The trainer reported no difference between rollout and actor",
            where=str(record.folder),
            why="They compute in different ways: a scale, a routing or positions that only one of them has.",
        )


def _lacking(prepared: Prepared) -> list[str]:
    code = prepared.layout.code
    return [name for name in _NEEDED if not (code / name).is_dir() and not (code / f"{name}.py").is_file()]


def _demand(prepared: Prepared) -> None:
    if prepared.recipe.rollout.engine != "vllm" or not prepared.recipe.megatron:
        raise RecipeError(
            "The level `rollout` rehearses vLLM's engine with Megatron-core, and this recipe asks for others",
            where=prepared.loaded.where("rollout", "engine"),
            hint="--rehearse=train rehearses its training.",
        )
    if lacking := _lacking(prepared):
        raise RecipeError(
            f"The level `rollout` needs what the tree of {prepared.lock.manifest} has not: {', '.join(lacking)}",
            where=prepared.loaded.where("manifest"),
            hint="--rehearse=imports and --rehearse=layout need none of it.",
        )
    found = interpreter.probe(prepared.interpreter.path, REQUIREMENTS)
    interpreter.require(found, REQUIREMENTS, by="vLLM's engine", extra="rehearsal-vllm")
