"""The treatment of each checkpoint tensor in a cast from FP8 to BF16. Needs no torch.

DeepSeek's format: a weight in F8_E4M3 of shape [M, N], and beside it `NAME_scale_inv` in F32 with one scale for each
block of 128 x 128, [ceil(M/128), ceil(N/128)]; the blocks of the last row and column are cut off. The scale may be in
another shard (DeepSeek-V3, inference/fp8_cast_bf16.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .hf_checkpoint import CONFIG, HfCheckpoint
from .safetensors_file import ITEM_SIZES, FileHeader, TensorEntry, header_bytes
from .tensor_error import TensorError

SCALE_SUFFIX = "_scale_inv"
FP8 = "F8_E4M3"
BF16 = "BF16"

_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that the cast writes.

    Attributes:
        dtype: The output dtype.
        scale: Name of the tensor with its scales; None if the tensor is copied unchanged.
    """

    source: TensorEntry
    dtype: str
    scale: str | None

    @property
    def size(self) -> int:
        """Size of the output in bytes."""
        return ITEM_SIZES[self.dtype] * math.prod(self.source.shape)


@dataclass(frozen=True)
class PlannedShard:
    """An output shard, named like its source. It is empty if all tensors of the source are left out.

    Attributes:
        scales: Names of the scales that are left out.
        mtp: Names of the tensors of multi-token prediction that are left out.
    """

    name: str
    tensors: tuple[PlannedTensor, ...]
    scales: tuple[str, ...]
    mtp: tuple[str, ...]

    def begin(self, source: FileHeader) -> bytes:
        """Return the first bytes of the output file: header length and header."""
        tensors = [(tensor.source.name, tensor.dtype, tensor.source.shape) for tensor in self.tensors]
        # transformers refuses a file without a format
        return header_bytes(tensors, {"format": "pt", **source.metadata})


@dataclass(frozen=True)
class CastRules:
    """The rules of a cast, read from config.json.

    Attributes:
        layers: Number of the model's layers; tensors of later ones are those of multi-token prediction (MTP).
        block: Rows and columns of the block of one scale.
    """

    layers: int
    block: tuple[int, int]

    def plan_shard(self, checkpoint: HfCheckpoint, shard: str) -> PlannedShard:
        """Plan a shard. Raises TensorError if a weight or scale has an invalid dtype or shape, or lacks the other."""
        tensors, scales, mtp = [], [], []
        for name, entry in checkpoint.header(shard).entries.items():
            if self.is_mtp(name):
                mtp.append(name)
            elif name.endswith(SCALE_SUFFIX):
                self._require_weight(checkpoint, shard, name)
                scales.append(name)
            else:
                tensors.append(self._plan_tensor(checkpoint, shard, entry))
        return PlannedShard(shard, tuple(tensors), tuple(scales), tuple(mtp))

    def plan(self, checkpoint: HfCheckpoint) -> Iterator[PlannedShard]:
        """Plan all shards, sorted by name. Reads all headers."""
        return (self.plan_shard(checkpoint, shard) for shard in checkpoint.shards)

    def is_mtp(self, name: str) -> bool:
        """Return whether a tensor belongs to a layer of multi-token prediction."""
        return is_beyond(name, self.layers)

    def _plan_tensor(self, checkpoint: HfCheckpoint, shard: str, entry: TensorEntry) -> PlannedTensor:
        scale = entry.name + SCALE_SUFFIX
        if scale not in checkpoint.weight_map:
            if entry.dtype.startswith("F8"):
                raise TensorError(
                    f"A tensor in {entry.dtype} has no scales",
                    where=f"{checkpoint.folder / shard}: {entry.name}",
                    why=f"The index lists no {scale}: the checkpoint is incomplete, or its FP8 is not DeepSeek's.",
                )
            return PlannedTensor(entry, entry.dtype, None)
        if entry.dtype != FP8:
            raise TensorError(
                "A tensor that has scales is not in FP8",
                where=f"{checkpoint.folder / shard}: {entry.name}",
                why=f"It is in {entry.dtype}, and the index lists {scale}. Weights with scales are in {FP8}.",
                hint="Was this folder written by another cast? Copy its index as well.",
            )
        self._require_scale(checkpoint, shard, entry, scale)
        return PlannedTensor(entry, BF16, scale)

    def _require_scale(self, checkpoint: HfCheckpoint, shard: str, entry: TensorEntry, scale: str) -> None:
        found = checkpoint.entry(scale)
        if found.dtype != "F32":
            raise TensorError(
                "Scales are not in F32",
                where=f"{checkpoint.folder / checkpoint.weight_map[scale]}: {scale}",
                why=f"They are in {found.dtype}, for {entry.name}.",
            )
        if len(entry.shape) != 2:
            raise TensorError(
                "A tensor in FP8 is not a matrix",
                where=f"{checkpoint.folder / shard}: {entry.name}",
                why=f"Its shape is {list(entry.shape)}.",
            )
        (rows, columns), (height, width) = entry.shape, self.block
        expected = (-(-rows // height), -(-columns // width))
        if found.shape != expected:
            raise TensorError(
                "Scales don't have the shape that their tensor needs",
                where=f"{checkpoint.folder / checkpoint.weight_map[scale]}: {scale}",
                why=f"They are {list(found.shape)}; {entry.name} of {list(entry.shape)} in blocks of "
                f"{height} x {width} has {list(expected)}.",
            )

    def _require_weight(self, checkpoint: HfCheckpoint, shard: str, scale: str) -> None:
        weight = scale.removesuffix(SCALE_SUFFIX)
        if weight not in checkpoint.weight_map:
            raise TensorError(
                "Scales have no tensor",
                where=f"{checkpoint.folder / shard}: {scale}",
                why=f"{weight} is missing.",
            )


def is_beyond(name: str, layers: int) -> bool:
    """Return whether a tensor belongs to a layer beyond the first `layers`."""
    layer = _LAYER.match(name)
    return layer is not None and int(layer.group(1)) >= layers


def cast_rules(checkpoint: HfCheckpoint) -> CastRules:
    """Read the rules from config.json. Raises TensorError if the quantization isn't DeepSeek's FP8."""
    config = checkpoint.config
    where = str(checkpoint.folder / CONFIG)
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise TensorError(
            "Invalid config.json",
            where=where,
            why=f"num_hidden_layers is {layers!r}, which is not a number of layers.",
        )
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method", "fp8") if isinstance(quantization, dict) else quantization
    if method != "fp8" or quantization.get("fmt", "e4m3") != "e4m3":
        raise TensorError(
            "Unsupported quantization",
            where=where,
            why=f"quantization_config has quant_method {method!r}; DeepSeek's FP8 has 'fp8' and fmt 'e4m3'.",
        )
    return CastRules(layers, _block(quantization.get("weight_block_size", [128, 128]), where))


def cast_config(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the output's config.json, and one line for each change."""
    changed = {key: value for key, value in config.items() if key != "quantization_config"}
    lines = ["quantization_config removed"] if "quantization_config" in config else []
    mtp = config.get("num_nextn_predict_layers", 0)
    if mtp != 0:
        changed["num_nextn_predict_layers"] = 0
        lines.append(f"num_nextn_predict_layers {mtp} -> 0")
    return changed, lines


def _block(value: object, where: str) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value):
        return value[0], value[1]
    raise TensorError(
        "Invalid config.json",
        where=where,
        why=f"quantization_config.weight_block_size is {value!r}, not two numbers.",
    )
