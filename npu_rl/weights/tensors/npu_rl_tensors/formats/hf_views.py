"""Views of a Hugging Face folder's tensors, read by box. FP8 weights are cast to BF16 when read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch

from ..cast_plan import SCALE_SUFFIX, CastRules, cast_rules
from ..fp8 import Fp8Cast, require_numbers, require_valid
from ..hf_checkpoint import HfCheckpoint
from ..safetensors_file import TensorEntry
from ..tensor_error import TensorError
from .boxes import Box, extent, row_major, slices, whole
from .tensor_views import OpenFiles, TensorView, TensorViews, read_strided

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}
WORDS = {dtype: word for word, dtype in _DTYPES.items()}
"""safetensors' word for each dtype."""


def hf_views(checkpoint: HfCheckpoint, files: OpenFiles, device: str = "cpu") -> TensorViews:
    """Return the tensors of a folder in file order, without scales.

    Args:
        checkpoint: The folder.
        files: The open files.
        device: What casts FP8.

    Raises:
        TensorError: If a shard, a dtype, or the scales of a weight are not as they should be.
    """
    rules = cast_rules(checkpoint)
    rules.check(checkpoint)
    scales = lru_cache(maxsize=8)(partial(_read_scales, checkpoint, files))
    on_device = Fp8Cast(device)
    tensors: dict[str, TensorView] = {}
    cast: set[str] = set()
    paths = {shard: checkpoint.folder / shard for shard in checkpoint.shards}
    for shard, entry in checkpoint.entries():
        if entry.name.endswith(SCALE_SUFFIX):
            continue
        if entry.name + SCALE_SUFFIX in checkpoint.weight_map:
            tensors[entry.name] = _cast_view(paths[shard], entry, rules, scales, on_device, files)
            cast.add(entry.name)
        else:
            tensors[entry.name] = _plain_view(paths[shard], entry, files)
    mtp = frozenset(name for name in tensors if rules.is_mtp(name))
    return TensorViews(tensors, cast=frozenset(cast), mtp=mtp)


def _plain_view(path: Path, entry: TensorEntry, files: OpenFiles) -> TensorView:
    """Return a tensor of a shard as it is stored."""
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise TensorError("Unsupported dtype", where=f"{path}: {entry.name}", why=f"It is {entry.dtype}.")

    def of_shape(shape: tuple[int, ...]) -> TensorView:
        def read(box: Box) -> torch.Tensor:
            return read_strided(files, path, entry.start, dtype, row_major(shape), box)

        return TensorView(entry.name, shape, dtype, str(path), read, of_shape)

    return of_shape(entry.shape)


def _cast_view(
    path: Path,
    entry: TensorEntry,
    rules: CastRules,
    scales: Callable[[str], torch.Tensor],
    cast: Fp8Cast,
    files: OpenFiles,
) -> TensorView:
    def read(box: Box) -> torch.Tensor:
        """Read a box; the rows are cast from the start of their block."""
        height, columns = rules.block[0], entry.shape[1]
        first, stop = box[0][0] // height * height, box[0][1]
        if 0 in extent(box):
            return torch.empty(extent(box), dtype=torch.bfloat16)
        rows = ((first, stop), (0, columns))
        codes = read_strided(files, path, entry.start, torch.int8, (columns, 1), rows)
        out = torch.empty(codes.shape, dtype=torch.bfloat16)
        blocks = scales(entry.name)[first // height : -(-stop // height)]
        require_numbers(codes, first, f"{path}: {entry.name}")
        cast.cast_rows(codes, blocks, rules.block, out)
        return out[slices(((box[0][0] - first, stop - first), box[1]))].contiguous()

    return TensorView(entry.name, entry.shape, torch.bfloat16, str(path), read, together=rules.block[0])


def _read_scales(checkpoint: HfCheckpoint, files: OpenFiles, weight: str) -> torch.Tensor:
    """Return the scales of a weight. Raises TensorError for an invalid one."""
    name = weight + SCALE_SUFFIX
    entry = checkpoint.entry(name)
    path = checkpoint.folder / checkpoint.weight_map[name]
    found = _plain_view(path, entry, files).read(whole(entry.shape))
    require_valid(found, weight, f"{path}: {name}")
    return found
