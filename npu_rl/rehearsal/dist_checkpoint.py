"""A Megatron dist checkpoint of the tiny model, made by the tree's own converter."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.disk import disk_errors
from npu_rl.errors import NpuRlError
from npu_rl.process import run_quietly
from npu_rl.training.prepare import Prepared

_RANKS = 2
_SCRIPT = "tools/converter_hf_to_mcore.py"
_TIMEOUT = 300.0  # seconds


@dataclass(frozen=True)
class DistCheckpoint:
    """A converted checkpoint.

    Attributes:
        folder: The checkpoint.
        usage: Counts of the patches and stand-ins that the conversion used.
    """

    folder: Path
    usage: Path


def convert_tiny_model(
    prepared: Prepared, model_folder: Path, environment: Mapping[str, str]
) -> DistCheckpoint:
    """Convert `model_folder`/model on two ranks with half of the experts each, unless that was done before.

    The checkpoint is kept beside the model, named after the tree and torch's version.

    Raises:
        NpuRlError: If the converter fails, with the end of its output.
    """
    inputs = json.dumps([prepared.lock.tree, prepared.interpreter.packages.get("torch")]).encode()
    folder = model_folder.with_name(
        f"{model_folder.name}-checkpoint-{hashlib.sha256(inputs).hexdigest()[:16]}"
    )
    checkpoint = DistCheckpoint(folder, folder.with_name(f"{folder.name}-usage"))
    if folder.is_dir():
        return checkpoint
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        with disk_errors(checkpoint.usage):
            checkpoint.usage.mkdir(parents=True, exist_ok=True)
        converter_environment = {**os.environ, **environment, "NPU_RL_USAGE": str(checkpoint.usage)}
        done = run_quietly(
            _command(prepared, model_folder, staging), converter_environment, model_folder, _TIMEOUT
        )
        if done.code != 0:
            raise NpuRlError(
                "The tiny model could not be converted to a Megatron checkpoint",
                where=_SCRIPT,
                why="\n".join((done.stderr or done.stdout).strip().splitlines()[-20:]),
            )
        with disk_errors(folder):
            staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return checkpoint


def _command(prepared: Prepared, model_folder: Path, output: Path) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={_RANKS}"]
    script = str(prepared.layout.code / _SCRIPT)
    paths = ["--hf_model_path", str(model_folder / "model"), "--output_path", str(output)]
    return [prepared.interpreter.path, *torchrun, script, *paths, f"--ep_size={_RANKS}", "--pp_size=1"]
