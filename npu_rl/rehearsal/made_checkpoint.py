"""A Megatron checkpoint of the tiny model, made like in `npu-rl weights convert`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run import tiny_model
from npu_rl.training.run.prepare import Prepared
from npu_rl.weights import tensors
from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
from npu_rl.weights.checkpoints.worker_pool import Workers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout


def with_checkpoint(
    small: Prepared, record: RunRecord, layout: OutputLayout, screen: PlainScreen
) -> Prepared:
    """Return the recipe with a checkpoint of its tiny model, which is made if it is missing.

    Raises:
        NpuRlError: If the model can't be made or converted.
    """
    runs, recipe = record.folder.parent, small.recipe
    place = tiny_model.model_folder(runs, recipe, small.interpreter)
    command = small.command(runs, record.mark, 1, None)
    screen.stage("making the model and the data")
    tiny_model.make(place, recipe, small.interpreter, command.environment)
    screen.stage("converting the model to a Megatron checkpoint")
    checkpoint = convert_tiny_model(small, place, layout)
    model = recipe.model.model_copy(update={"checkpoint": str(checkpoint)})
    return small.with_recipe(recipe.model_copy(update={"model": model}))


def convert_tiny_model(prepared: Prepared, model_folder: Path, layout: OutputLayout) -> Path:
    """Convert `model_folder`/model with the training interpreter's torch, unless that was done before.

    Returns:
        The checkpoint, which is kept beside the model, named after everything that determines its content.

    Raises:
        NpuRlError: If the conversion fails.
    """
    folder = model_folder.with_name(f"{model_folder.name}-checkpoint-{_digest(prepared, layout)}")
    if folder.is_dir():
        return folder
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    options = ConvertOptions(model_folder / "model", staging, layout, config=None)
    try:
        convert_weights(options, Workers(prepared.interpreter.path, 1))
        with disk_errors(folder):
            staging.rename(folder)
    finally:
        remove_tree(staging)
    return folder


def _digest(prepared: Prepared, layout: OutputLayout) -> str:
    modules = [
        (str(file.relative_to(tensors.ROOT)), hashlib.sha256(file.read_bytes()).hexdigest())
        for file in sorted(tensors.ROOT.rglob("*.py"))
    ]
    inputs = json.dumps([modules, prepared.interpreter.packages.get("torch"), layout.to_json()]).encode()
    return hashlib.sha256(inputs).hexdigest()[:16]
