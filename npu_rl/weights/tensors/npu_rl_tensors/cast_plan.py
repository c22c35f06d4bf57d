"""The treatment of each checkpoint tensor in a cast from FP8 to BF16. Needs no torch.

DeepSeek's format: a weight in F8_E4M3 of shape [M, N], and beside it `NAME_scale_inv` in F32 with one scale for each
block of 128 x 128, [ceil(M/128), ceil(N/128)]; the blocks of the last row and column are cut off. The scale may be in
another shard (DeepSeek-V3, inference/fp8_cast_bf16.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .hf_checkpoint import CONFIG, HfCheckpoint
from .safetensors_file import TensorEntry
from .tensor_error import TensorError

SCALE_SUFFIX = "_scale_inv"
FP8 = "F8_E4M3"

_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")


@dataclass(frozen=True)
class CastRules:
    """The rules of a cast, read from config.json.

    Attributes:
        layers: Number of the model's layers; tensors of later ones are those of multi-token prediction (MTP).
        block: Rows and columns of the block of one scale.
    """

    layers: int
    block: tuple[int, int]

    def check(self, checkpoint: HfCheckpoint) -> None:
        """Raise TensorError if a weight or scale has another dtype or shape, or lacks the other. Reads all headers."""
        for shard, entry in checkpoint.entries():
            where = f"{checkpoint.folder / shard}: {entry.name}"
            weight = entry.name.removesuffix(SCALE_SUFFIX)
            if self.is_mtp(entry.name):
                continue
            if weight == entry.name:
                self._check_weight(checkpoint, entry, where)
            elif weight not in checkpoint.weight_map:
                raise TensorError("Scales have no tensor", where=where, why=f"{weight} is missing.")

    def is_mtp(self, name: str) -> bool:
        """Return whether a tensor belongs to a layer of multi-token prediction."""
        return is_beyond(name, self.layers)

    def _check_weight(self, checkpoint: HfCheckpoint, entry: TensorEntry, where: str) -> None:
        scale = entry.name + SCALE_SUFFIX
        if scale not in checkpoint.weight_map:
            if entry.dtype.startswith("F8"):
                raise TensorError(
                    f"A tensor in {entry.dtype} has no scales",
                    where=where,
                    why=f"The index lists no {scale}: the checkpoint is incomplete, or its FP8 is not DeepSeek's.",
                )
            return
        if entry.dtype != FP8:
            raise TensorError(
                "A tensor that has scales is not in FP8",
                where=where,
                why=f"It is in {entry.dtype}, and the index lists {scale}. Weights with scales are in {FP8}.",
                hint="Was this folder written by another cast? Copy its index as well.",
            )
        if len(entry.shape) != 2:
            raise TensorError(
                "A tensor in FP8 is not a matrix", where=where, why=f"Its shape is {list(entry.shape)}."
            )
        found = checkpoint.entry(scale)
        expected = tuple(-(-size // step) for size, step in zip(entry.shape, self.block, strict=True))
        if (found.dtype, found.shape) != ("F32", expected):
            height, width = self.block
            raise TensorError(
                "Scales don't have the dtype and shape that their tensor needs",
                where=f"{checkpoint.folder / checkpoint.weight_map[scale]}: {scale}",
                why=f"They are {list(found.shape)} in {found.dtype}; {entry.name} of {list(entry.shape)} in "
                f"blocks of {height} x {width} has {list(expected)} in F32.",
            )


def is_beyond(name: str, layers: int) -> bool:
    """Return whether a tensor belongs to a layer beyond the first `layers`."""
    layer = _LAYER.match(name)
    return layer is not None and int(layer.group(1)) >= layers


def cast_rules(checkpoint: HfCheckpoint) -> CastRules:
    """Read the rules from config.json. Raises TensorError if the quantization isn't DeepSeek's FP8."""
    config = checkpoint.config
    layers = config.get("num_hidden_layers")
    quantization = config.get("quantization_config") or {}
    described = quantization if isinstance(quantization, dict) else {"quant_method": quantization}
    method, block = described.get("quant_method", "fp8"), described.get("weight_block_size", [128, 128])
    if method != "fp8" or described.get("fmt", "e4m3") != "e4m3":
        raise TensorError(
            "Unsupported quantization",
            where=str(checkpoint.folder / CONFIG),
            why=f"quantization_config has quant_method {method!r}; DeepSeek's FP8 has 'fp8' and fmt 'e4m3'.",
        )
    if type(layers) is not int or layers < 1:
        why = f"num_hidden_layers is {layers!r}, which is not a number of layers."
    elif not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)):
        why = f"quantization_config.weight_block_size is {block!r}, not two numbers."
    else:
        return CastRules(layers, (block[0], block[1]))
    raise TensorError("Invalid config.json", where=str(checkpoint.folder / CONFIG), why=why)


def cast_config(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the output's config.json, and one line for each change."""
    changed = {key: value for key, value in config.items() if key != "quantization_config"}
    lines = ["quantization_config removed"] if "quantization_config" in config else []
    mtp = config.get("num_nextn_predict_layers", 0)
    if mtp != 0:
        changed["num_nextn_predict_layers"] = 0
        lines.append(f"num_nextn_predict_layers {mtp} -> 0")
    return changed, lines
