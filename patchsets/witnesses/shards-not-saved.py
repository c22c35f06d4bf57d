"""Save tensors with mbridge as in verl's checkpoints, beside tensors that the run lacks, and search for them.

mbridge's DequantFP8SafeTensorIO, which its DeepSeek-V3 uses (mbridge/models/deepseek_v3.py:320@v0.15.1), and
SafeTensorIO's two ways to save are the tree's own; `memory_efficient` of verl's `mbridge_config` chooses the second
(verl/trainer/config/actor/actor.yaml:143@v0.8.0). The Triton kernel, which reads FP8, is a name that computes nothing.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from witness_common import make_module, make_packages, show

LAYER = "model.layers.0.mlp"
WEIGHTS = {part: f"{LAYER}.{part}_proj.weight" for part in ("gate", "up", "down")}
SHARDS = {
    "alone": [WEIGHTS["gate"]],
    "FP8 scale": [WEIGHTS["up"], f"{WEIGHTS['up']}_scale_inv"],
    "MTP": [WEIGHTS["down"], "model.layers.61.enorm.weight"],
}
"""Tensors in each published shard; the run has the first of each."""
UNPUBLISHED = "model.layers.62.enorm.weight"
FILES = "mbridge.models.ext.deepseek_v3"


def reader() -> type:
    """Import the class without the packages above it, which import Megatron-core, and without Triton."""
    make_packages("mbridge", "mbridge.core", "mbridge.models", "mbridge.models.ext", FILES)
    make_module(f"{FILES}.kernel", weight_dequant=None)
    found: type = importlib.import_module(f"{FILES}.dequant_fp8_safetensor_io").DequantFP8SafeTensorIO
    return found


def publish(folder: Path) -> None:
    """Write a checkpoint of a file for each of SHARDS, with its index."""
    folder.mkdir()
    for shard, names in SHARDS.items():
        save_file({name: torch.ones(2, 2) for name in names}, folder / f"{shard}.safetensors")
    index = {name: f"{shard}.safetensors" for shard, names in SHARDS.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text('{"model_type": "qwen3"}')  # later versions read it


def names_in(file: Path) -> set[str]:
    """Return the names of a file's tensors; none of a file that is missing."""
    if not file.exists():
        return set()
    with safe_open(file, framework="pt") as stream:
        return set(stream.keys())


def save(io: Any, folder: Path, given: list[str], memory_efficient: bool = False) -> dict[str, Any]:
    """Save the tensors `given`, and return which shards have what the run has, and what else is in the folder."""
    folder.mkdir()
    tensors = ((name, torch.ones(2, 2)) for name in given)
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if memory_efficient:
                io.save_hf_weight_memory_efficient(tensors, str(folder))
            else:
                io.save_hf_weight(tensors, str(folder), [])
        except FileNotFoundError as raised:
            error = type(raised).__name__
    shards = {shard: folder / f"{shard}.safetensors" for shard in SHARDS}
    saved = {shard: bool(names_in(file) & set(given)) for shard, file in shards.items()}
    others = set(folder.iterdir()) - set(shards.values())
    return {"saved": saved, "other files": len(others), "error": error}


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        publish(Path(folder, "published"))
        io = reader()(str(Path(folder, "published")))
        has = [names[0] for names in SHARDS.values()]
        usual = save(io, Path(folder, "usual"), [*has, UNPUBLISHED])
        frugal = save(io, Path(folder, "frugal"), [*has, UNPUBLISHED], memory_efficient=True)
        every = [name for names in SHARDS.values() for name in names]
        save(io, Path(folder, "twice"), [*every, *has])
        whole = [names_in(Path(folder, "twice", f"{shard}.safetensors")) for shard in SHARDS]
    saved = [*usual["saved"].values(), *frugal["saved"].values()]
    return {
        "fault": saved[0] and not all(saved),
        "usual": usual,
        "memory_efficient": frugal,
        "whole though a tensor comes twice": whole == [set(names) for names in SHARDS.values()],
    }


if __name__ == "__main__":
    show(main)
