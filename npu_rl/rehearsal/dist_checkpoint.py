"""A Megatron dist checkpoint of a tiny model, made as a user makes one: by the tree's own converter."""

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
from npu_rl.training.prepare import Prepared
from npu_rl.training.process import run_quietly

_RANKS = 2
_SCRIPT = "tools/converter_hf_to_mcore.py"
_LIMIT = 300.0  # seconds


@dataclass(frozen=True)
class DistCheckpoint:
    """Where it is, and where the counts of its making are."""

    folder: Path
    usage: Path


def converted(prepared: Prepared, made: Path, environment: Mapping[str, str]) -> DistCheckpoint:
    """The checkpoint of `made`/model by this tree, one half of its experts by each of two ranks.

    Kept beside it, so that it is made once. Raises NpuRlError with the converter's last words.
    """
    said = json.dumps([prepared.lock.tree, prepared.interpreter.packages.get("torch")]).encode()
    folder = made.with_name(f"{made.name}-checkpoint-{hashlib.sha256(said).hexdigest()[:16]}")
    checkpoint = DistCheckpoint(folder, folder.with_name(f"{folder.name}-usage"))
    if folder.is_dir():
        return checkpoint
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        with disk_errors(checkpoint.usage):
            checkpoint.usage.mkdir(parents=True, exist_ok=True)
        told = {**os.environ, **environment, "NPU_RL_USAGE": str(checkpoint.usage)}
        done = run_quietly(_command(prepared, made, staging), told, made, _LIMIT)
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


def _command(prepared: Prepared, made: Path, output: Path) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={_RANKS}"]
    script = str(prepared.layout.code / _SCRIPT)
    paths = ["--hf_model_path", str(made / "model"), "--output_path", str(output)]
    return [prepared.interpreter.path, *torchrun, script, *paths, f"--ep_size={_RANKS}", "--pp_size=1"]
