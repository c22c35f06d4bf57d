"""Cast one shard from FP8 to BF16, a few rows at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from .cast_plan import CastRules, PlannedTensor, cast_rules
from .formats.hf_views import FLOATS, plain_view
from .formats.tensor_views import OpenFiles
from .fp8 import Fp8Cast, first_nan, invalid_scale
from .hf_checkpoint import HfCheckpoint
from .not_finite import all_finite, require_finite
from .part_file import SummedFile, part_of
from .regular_file import open_regular
from .safetensors_file import TensorEntry
from .tensor_error import TensorError

_CHUNK = 4 * 1024 * 1024  # bytes that are read at once

_casts: dict[str, Fp8Cast] = {}
_checkpoints: dict[str, tuple[HfCheckpoint, CastRules]] = {}


def cast_shard(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Write the output's shard of the same name, under that name once it is whole and on the disk.

    Args:
        arguments: `input` and `output`, folders; `shard`, a file name; `device`.
        progress: Called with bytes of the output.
    """
    checkpoint, rules = _opened(arguments["input"])
    plan = rules.plan_shard(checkpoint, arguments["shard"])
    header = checkpoint.header(plan.name)
    cast = _cast_on(arguments["device"])
    target = Path(arguments["output"], plan.name)
    part = part_of(target)
    with SummedFile(part, buffering=0) as out, open_regular(header.path, 0) as source:
        _write(out, plan.begin(header))
        for tensor in plan.tensors:
            if tensor.scale is None:
                _copy(source, tensor.source, out, progress)
            else:
                _cast(source, tensor, checkpoint, rules, cast, out, progress)
        _sync(out)
        size = out.tell()
    part.replace(target)
    return {"shard": plan.name, "size": size, "sampled_crc32": out.sum.crc32}


def _opened(folder: str) -> tuple[HfCheckpoint, CastRules]:
    if folder not in _checkpoints:
        checkpoint = HfCheckpoint(Path(folder))
        _checkpoints[folder] = checkpoint, cast_rules(checkpoint)
    return _checkpoints[folder]


def _cast_on(device: str) -> Fp8Cast:
    if device not in _casts:
        _casts[device] = Fp8Cast(device)
    return _casts[device]


def _copy(source: BinaryIO, entry: TensorEntry, out: SummedFile, progress: Callable[[int], None]) -> None:
    """Copy a tensor as it is. Raises TensorError for one with NaN or infinity."""
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
        _write(out, data)
        left -= len(data)
        progress(len(data))


def _cast(
    source: BinaryIO,
    tensor: PlannedTensor,
    checkpoint: HfCheckpoint,
    rules: CastRules,
    cast: Fp8Cast,
    out: SummedFile,
    progress: Callable[[int], None],
) -> None:
    entry = tensor.source
    assert tensor.scale is not None
    scales = _scales(checkpoint, tensor.scale, entry)
    (rows, columns), height = entry.shape, rules.block[0]
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
        nan = first_nan(codes)
        if nan is not None:
            raise TensorError(
                "A weight is not a number",
                where=f"{source.name}: {entry.name}[{first + nan[0]}, {nan[1]}]",
                hint="The file is damaged, or its training has failed. Compare its hash with the source's.",
            )
        blocks = scales[first // height : -(-(first + count) // height)]
        cast.cast_rows(codes, blocks, rules.block, result)
        _write(out, memoryview(result_memory)[: 2 * count * columns])
        progress(2 * count * columns)


def _scales(checkpoint: HfCheckpoint, name: str, weight: TensorEntry) -> torch.Tensor:
    entry = checkpoint.entry(name)
    path = checkpoint.folder / checkpoint.weight_map[name]
    data = bytearray(entry.size)
    with open_regular(path, 0) as source:
        source.seek(entry.start)
        _read(source, memoryview(data), entry)
    scales = (
        torch.frombuffer(data, dtype=torch.float32).view(entry.shape) if data else torch.empty(entry.shape)
    )
    invalid = invalid_scale(scales)
    if invalid is None:
        return scales
    row, column, value = invalid
    raise TensorError(
        f"Invalid scale {value}",
        where=f"{path}: {name}[{row}, {column}]",
        why=f"The weights of {weight.name} in this block would be multiplied by it.",
        hint="The file is damaged, or was quantized wrongly. Compare its hash with the source's.",
    )


def _read(source: BinaryIO, into: memoryview, entry: TensorEntry) -> None:
    while into:
        count = source.readinto(into)  # type: ignore[attr-defined]
        if not count:
            raise _ended(source, entry)
        into = into[count:]


def _write(out: SummedFile, data: bytes | memoryview) -> None:
    left = memoryview(data)
    with _named(out):
        while left:
            left = left[out.write(left) :]


def _sync(out: SummedFile) -> None:
    with _named(out):
        os.fsync(out.fileno())


@contextlib.contextmanager
def _named(out: SummedFile) -> Iterator[None]:
    """Name the file in the system's errors, which know a handle only: of a full disk the input was named."""
    try:
        yield
    except OSError as error:
        error.filename = out.name
        raise


def _ended(source: BinaryIO, entry: TensorEntry) -> TensorError:
    return TensorError(
        "A file became shorter while it was read", where=f"{source.name}: {entry.name} of {entry.size} bytes"
    )
