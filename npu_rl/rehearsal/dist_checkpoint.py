"""A Megatron dist checkpoint of the tiny model, made as `npu-rl weights convert` makes it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from npu_rl.common.disk import disk_errors, put_in_place, remove_tree
from npu_rl.training.run.made_folders import keep_made, place_for
from npu_rl.training.run.prepare import Prepared
from npu_rl.weights import tensors
from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
from npu_rl.weights.checkpoints.worker_pool import Workers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout


def convert_tiny_model(prepared: Prepared, model_folder: Path) -> Path:
    """Convert `model_folder`/model with the training interpreter's torch, unless that was done before.

    Returns:
        The checkpoint, which is kept beside the model, named after everything that determines its content.

    Raises:
        NpuRlError: If the conversion fails.
    """
    folder = place_for(model_folder.with_name(f"{model_folder.name}-checkpoint-{_digest(prepared)}"))
    if folder.is_dir():
        return folder
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    options = ConvertOptions(model_folder / "model", staging, OutputLayout("torch_dist"), config=None)
    try:
        convert_weights(options, Workers(prepared.interpreter.path, 1))
        with disk_errors(folder):
            keep_made(staging, folder)
            put_in_place(staging, folder)
    finally:
        remove_tree(staging)
    return folder


def _digest(prepared: Prepared) -> str:
    modules = [
        (str(file.relative_to(tensors.ROOT)), hashlib.sha256(file.read_bytes()).hexdigest())
        for file in sorted(tensors.ROOT.rglob("*.py"))
    ]
    inputs = json.dumps([modules, prepared.interpreter.packages.get("torch")]).encode()
    return hashlib.sha256(inputs).hexdigest()[:16]
