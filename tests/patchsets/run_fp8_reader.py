"""Read a small FP8 checkpoint by mbridge's own reader and compare each tensor with npu-rl's cast.

    python run_fp8_reader.py TENSORS [ROWS,COLUMNS]

On PYTHONPATH: a tree with mbridge. TENSORS is the folder of `npu_rl_tensors`; ROWS,COLUMNS are another shape for the
scale of layer.0. The output is one line of JSON: whether each tensor is equal in every bit, or the error.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHAPES = {"layer.0.weight": (300, 200), "layer.1.weight": (128, 384)}


def checkpoint(folder: Path, wrong: str = "") -> dict[str, torch.Tensor]:
    """Write two files and an index; the scale of layer.1 is in the other file than its weight."""
    numbers = torch.Generator().manual_seed(0)
    tensors = {"norm.weight": torch.randn(64, generator=numbers).bfloat16()}
    for name, (rows, columns) in SHAPES.items():
        tensors[name] = torch.randn(rows, columns, generator=numbers).to(torch.float8_e4m3fn)
        blocks = (-(-rows // 128), -(-columns // 128))
        tensors[f"{name}_scale_inv"] = torch.rand(blocks, generator=numbers) * 1e-3
    if wrong:
        tensors["layer.0.weight_scale_inv"] = torch.ones([int(size) for size in wrong.split(",")])
    second = {"layer.1.weight_scale_inv"}
    files = {name: "b.safetensors" if name in second else "a.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return tensors


def cast(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    from npu_rl_tensors.fp8 import Fp8Cast

    out = torch.empty(weight.shape, dtype=torch.bfloat16)
    Fp8Cast().cast_rows(weight.view(torch.int8), scale, (128, 128), out)
    return out


def reader() -> Any:
    """Import the reader without mbridge's packages, whose own imports are Megatron's.

    A CPU has no Triton; upstream's kernel is decorated where the reader is imported, and never started here.
    """
    triton: Any = types.ModuleType("triton")
    triton.language = types.ModuleType("triton.language")
    triton.language.constexpr = int
    triton.Config = lambda *_, **__: None
    triton.jit = lambda function: function
    triton.autotune = lambda **_: lambda function: function
    sys.modules |= {"triton": triton, "triton.language": triton.language}
    for name in ("mbridge", "mbridge.core", "mbridge.models", "mbridge.models.ext"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(*name.split(".")).absolute())]
        sys.modules[name] = package
    return importlib.import_module("mbridge.models.ext.deepseek_v3.dequant_fp8_safetensor_io")


def main(tensors: str, wrong: str = "") -> dict[str, Any]:
    opened = reader().DequantFP8SafeTensorIO
    sys.path.append(tensors)
    with tempfile.TemporaryDirectory() as folder:
        written = checkpoint(Path(folder), wrong)
        names = ["norm.weight", *SHAPES]
        try:
            found = opened(folder).load_some_hf_weight(names)
        except (AssertionError, RuntimeError, ValueError) as error:
            return {"error": str(error)}
    torch.set_default_dtype(torch.float32)
    right = {
        name: cast(written[name], written[f"{name}_scale_inv"]) if name in SHAPES else written[name]
        for name in names
    }
    return {
        name: found[name].dtype == torch.bfloat16 and torch.equal(found[name], right[name]) for name in names
    }


if __name__ == "__main__":
    result = main(*sys.argv[1:])
    print("\n" + json.dumps(result))
