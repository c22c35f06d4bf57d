"""Cast one shard from FP8 to BF16, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import torch

from .cast_plan import CastRules, cast_rules
from .formats.hf_views import FLOATS, plain_view, read_scales
from .formats.tensor_views import OpenFiles
from .fp8 import Fp8Cast, require_numbers
from .hf_checkpoint import HfCheckpoint
from .not_finite import all_finite, require_finite
from .part_file import new_file
from .regular_file import open_regular
from .safetensors_file import TensorEntry
from .tensor_error import TensorError

_CHUNK = 4 * 1024 * 1024  # bytes that are read at once


def cast_shard(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Write the BF16 shard under the same name. The file gets its name once it is complete and on disk.

    Args:
        arguments: `input` and `output`, folders; `shard`, a file name; `device`.
        progress: Called with the number of bytes written.
    """
    checkpoint, rules, files = _opened(arguments["input"])
    plan = rules.plan_shard(checkpoint, arguments["shard"])
    header = checkpoint.header(plan.name)
    cast = _cast_on(arguments["device"])
    target = Path(arguments["output"], plan.name)
    with open_regular(header.path, 0) as source, new_file(target) as out:
        out.write(plan.begin(header))
        for tensor in plan.tensors:
            if tensor.scale is None:
                _copy(source, tensor.source, out, progress)
            else:
                scales = read_scales(checkpoint, files, tensor.source.name)
                _cast(source, tensor.source, scales, rules.block, cast, out, progress)
    return {"shard": plan.name}


@lru_cache(maxsize=1)
def _opened(folder: str) -> tuple[HfCheckpoint, CastRules, OpenFiles]:
    checkpoint = HfCheckpoint(Path(folder))
    return checkpoint, cast_rules(checkpoint), OpenFiles()


_cast_on = lru_cache(maxsize=1)(Fp8Cast)


def _copy(source: BinaryIO, entry: TensorEntry, out: BinaryIO, progress: Callable[[int], None]) -> None:
    """Copy a tensor unchanged. Raises TensorError if a value is NaN or infinite."""
    source.seek(entry.start)
    dtype = FLOATS.get(entry.dtype)
    memory = bytearray(min(entry.size, _CHUNK))
    left = entry.size
    while left:
        data = memoryview(memory)[: min(left, _CHUNK)]
        _read(source, data, entry)
        if dtype is not None:
            values = torch.frombuffer(memory, dtype=dtype, count=len(data) // dtype.itemsize)
            if not all_finite(values):
                require_finite(plain_view(Path(source.name), entry, OpenFiles()), values)
        out.write(data)
        left -= len(data)
        progress(len(data))


def _cast(
    source: BinaryIO,
    entry: TensorEntry,
    scales: torch.Tensor,
    block: tuple[int, int],
    cast: Fp8Cast,
    out: BinaryIO,
    progress: Callable[[int], None],
) -> None:
    (rows, columns), height = entry.shape, block[0]
    if not columns:
        return
    step = min(height * max(1, _CHUNK // (height * columns)), rows)
    codes_memory, result_memory = bytearray(step * columns), bytearray(2 * step * columns)
    source.seek(entry.start)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        _read(source, memoryview(codes_memory)[: count * columns], entry)
        codes = torch.frombuffer(codes_memory, dtype=torch.int8)[: count * columns].view(count, columns)
        result = torch.frombuffer(result_memory, dtype=torch.bfloat16)[: count * columns].view(count, columns)
        require_numbers(codes, first, f"{source.name}: {entry.name}")
        blocks = scales[first // height : -(-(first + count) // height)]
        cast.cast_rows(codes, blocks, block, result)
        out.write(memoryview(result_memory)[: 2 * count * columns])
        progress(2 * count * columns)


def _read(source: BinaryIO, into: memoryview, entry: TensorEntry) -> None:
    while into:
        try:
            count = source.readinto(into)  # type: ignore[attr-defined]
        except OSError as error:
            error.filename = source.name
            raise
        if not count:
            where = f"{source.name}: {entry.name} of {entry.size} bytes"
            raise TensorError("A file became shorter while it was read", where=where)
        into = into[count:]
