"""Save a tensor with mbridge as in verl's checkpoints, beside tensors that the run lacks, and search for it.

mbridge's DequantFP8SafeTensorIO, which its DeepSeek-V3 uses (mbridge/models/deepseek_v3.py:320@v0.15.1), and
SafeTensorIO.save_hf_weight are the tree's own. Its Triton kernel, which reads FP8, is a name that computes nothing.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NAME, SHARD = "model.layers.0.mlp.gate_proj.weight", "model-00001-of-000001.safetensors"
OTHER = "model.layers.0.mlp.up_proj.weight"
BESIDE = {"alone": "", "FP8 scale": f"{NAME}_scale_inv", "MTP": "model.layers.61.enorm.weight"}
FILES = "mbridge.models.ext.deepseek_v3"


def reader() -> type:
    """Import the class without the packages above it, which import Megatron-core, and without Triton."""
    for name in ("mbridge", "mbridge.core", "mbridge.models", "mbridge.models.ext", FILES):
        package = ModuleType(name)
        package.__path__ = [name.replace(".", "/")]
        sys.modules[name] = package
    kernel = ModuleType(f"{FILES}.kernel")
    kernel.weight_dequant = None  # type: ignore[attr-defined]
    sys.modules[kernel.__name__] = kernel
    found: type = importlib.import_module(f"{FILES}.dequant_fp8_safetensor_io").DequantFP8SafeTensorIO
    return found


def is_saved(made: type, folder: Path, beside: str) -> bool:
    """Return whether the weight is in a saved shard. The published shard also contains `beside`."""
    return NAME in saved_names(made, folder, beside, [NAME])


def saved_names(made: type, folder: Path, beside: str, given: list[str]) -> list[str]:
    """Return the names in a checkpoint's shards if the run supplies the tensors `given`."""
    published, checkpoint = folder / "published", folder / "checkpoint"
    published.mkdir(parents=True)
    checkpoint.mkdir()
    tensors = {name: torch.ones(2, 2) for name in (NAME, beside) if name}
    save_file(tensors, published / SHARD)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, SHARD)}
    (published / "model.safetensors.index.json").write_text(json.dumps(index))
    (published / "config.json").write_text('{"model_type": "qwen3"}')  # later versions read it
    files = made(str(published))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files.save_hf_weight(((name, torch.ones(2, 2)) for name in given), str(checkpoint), [])
    names: list[str] = []
    for shard in checkpoint.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as stream:
            names.extend(stream.keys())
    return names


if __name__ == "__main__":
    made = reader()
    with tempfile.TemporaryDirectory() as folder:
        saved = {what: is_saved(made, Path(folder, what), name) for what, name in BESIDE.items()}
        whole = len(saved_names(made, Path(folder, "twice"), OTHER, [NAME, OTHER, NAME])) == 2
    fault = saved["alone"] and not all(saved.values())
    print(json.dumps({"fault": fault, "saved": saved, "whole though a tensor comes twice": whole}))
