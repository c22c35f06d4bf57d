"""mbridge reads DeepSeek's FP8 checkpoints on CUDA only, and would read scales of another shape wrongly.

Called is DequantFP8SafeTensorIO.load_some_hf_weight (mbridge/models/ext/deepseek_v3@0cd4ae2) on a small checkpoint: a
weight with blocks cut short, one whose scale is in another file, and one that is not FP8. "equal" is whether each is
the product in float32 rounded to bfloat16, in every bit; "refused" whether a scale of another shape is. The Triton of
upstream's kernel is stood in for, and never started.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from witness_common import make_module, make_packages, show

SHAPES = {"layer.0.weight": (300, 200), "layer.1.weight": (128, 384)}
WRONG = [(3, 3), (4, 2), (2, 2), (3, 1)]  # the first weight has 3 x 2 blocks of 128 x 128


def main() -> dict[str, Any]:
    language = make_module("triton.language", constexpr=int)
    make_module(
        "triton", language=language, Config=lambda *_, **__: None, jit=lambda function: function,
        autotune=lambda **_: lambda function: function,
    )  # fmt: skip
    make_packages("mbridge", "mbridge.core", "mbridge.models", "mbridge.models.ext")  # theirs import Megatron
    module = importlib.import_module("mbridge.models.ext.deepseek_v3.dequant_fp8_safetensor_io")
    try:
        equal = read_equal(module.DequantFP8SafeTensorIO)
        refused = [is_refused(module.DequantFP8SafeTensorIO, shape) for shape in WRONG]
    except (AssertionError, RuntimeError) as error:
        return {"fault": True, "error": str(error).partition("\n")[0]}
    return {"fault": not all([*equal.values(), *refused]), "equal": equal, "refused": refused}


def checkpoint(folder: Path, wrong: tuple[int, int] | None = None) -> dict[str, torch.Tensor]:
    """Write two files and an index; the scale of layer.1 is in the other file than its weight."""
    numbers = torch.Generator().manual_seed(0)
    tensors = {"norm.weight": torch.randn(64, generator=numbers).bfloat16()}
    for name, (rows, columns) in SHAPES.items():
        tensors[name] = torch.randn(rows, columns, generator=numbers).to(torch.float8_e4m3fn)
        blocks = (-(-rows // 128), -(-columns // 128))
        tensors[f"{name}_scale_inv"] = torch.rand(blocks, generator=numbers) * 1e-3
    if wrong:
        tensors["layer.0.weight_scale_inv"] = torch.ones(wrong)
    second = {"layer.1.weight_scale_inv"}
    files = {name: "b.safetensors" if name in second else "a.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return tensors


def read_equal(opened: Any) -> dict[str, bool]:
    with tempfile.TemporaryDirectory() as folder:
        written = checkpoint(Path(folder))
        names = ["norm.weight", *SHAPES]
        found = opened(folder).load_some_hf_weight(names)
    for name, (rows, columns) in SHAPES.items():
        scale = written[f"{name}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
        written[name] = (written[name].float() * scale[:rows, :columns]).to(torch.bfloat16)
    return {
        name: found[name].dtype == torch.bfloat16 and torch.equal(found[name], written[name])
        for name in names
    }


def is_refused(opened: Any, shape: tuple[int, int]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder), shape)
        try:
            opened(folder).load_some_hf_weight(["layer.0.weight"])
        except ValueError as error:
            return str(error).startswith(f"layer.0.weight_scale_inv: shape {list(shape)} instead of [3, 2]")
    return False


if __name__ == "__main__":
    show(main)
