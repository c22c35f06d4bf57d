"""Views of tensors in files: any box (rectangular part) can be read without the rest."""

from __future__ import annotations

import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..regular_file import open_handle
from ..tensor_error import TensorError
from .boxes import Box, extent, origin, overlap, row_major, shifted, slices, split

Part = tuple[Box, Callable[[Box], torch.Tensor]]
"""A box of a tensor, and what reads a box within it, counted from its own first value."""

_SAMPLE = 1 << 16  # bytes of a file at each of three places
_OPEN = 64  # files kept open at once
_WASTE = 2  # a box is read with what lies between its runs while that is at most this many times its size


@dataclass(frozen=True)
class TensorView:
    """A tensor that is read on demand.

    Attributes:
        name: As the checkpoint has it.
        where: The file, for errors.
        read: From a box to a tensor of the box's shape, in memory of its own.
        reshape: From a shape to the same values in that shape; None: they don't lie one after the other.
        together: Rows that are read together, as those of a block of FP8.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    where: str
    read: Callable[[Box], torch.Tensor]
    reshape: Callable[[tuple[int, ...]], TensorView] | None = None
    together: int = 1

    @property
    def numel(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes of its values."""
        return self.numel * int(self.dtype.itemsize)

    def pieces(self, most: int) -> Iterator[Box]:
        """Yield boxes of about `most` values that cover the tensor."""
        return split(self.shape, most, self.together)


@dataclass(frozen=True)
class TensorViews:
    """The tensors of a checkpoint in any format.

    Attributes:
        tensors: By name.
        copies: Further copies of the same values, by name: in a legacy checkpoint each rank has the norms, in one of
            FSDP there are replicas of a hybrid mesh, and buffers of the other ranks.
        cast: Names of those that are stored in FP8 and read as BF16.
        mtp: Names of those of multi-token prediction, which are in `tensors`, too.
        unknown: Stored tensors that the model has no place for.
        objects: Names of what is stored and no tensor of the model: extra states of Transformer Engine's layers, the
            optimizer's state, arguments of the run.
    """

    tensors: dict[str, TensorView]
    copies: Mapping[str, list[TensorView]] = field(default_factory=dict)
    cast: frozenset[str] = frozenset()
    mtp: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()


class OpenFiles:
    """Files that are read at offsets. The least recently used file is closed when too many are open."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, int] = OrderedDict()  # by text, which is hashed and compared faster

    def read(self, path: Path, start: int, count: int) -> Any:
        """Return `count` bytes from `start` as a bytearray. Raises TensorError where there are fewer, and OSError."""
        data = bytearray(count)
        view, done = memoryview(data), 0
        handle = self.handle(path)
        while done < count:
            try:
                got = os.preadv(handle, [view[done : done + (1 << 30)]], start + done)
            except OSError as error:
                error.filename = str(path)
                raise
            if got == 0:
                raise TensorError(
                    "A file is truncated",
                    where=str(path),
                    why=f"It ends at byte {start + done}, {count - done} bytes before the end of the tensor.",
                    hint="Copy or download it again.",
                )
            done += got
        return data

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        return os.fstat(self.handle(path)).st_size

    def close(self) -> None:
        """Close them all."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def handle(self, path: Path) -> int:
        """Return a descriptor of an open file."""
        name = str(path)
        if name in self._handles:
            self._handles.move_to_end(name)
        else:
            if len(self._handles) >= _OPEN:
                os.close(self._handles.popitem(last=False)[1])
            self._handles[name] = open_handle(name)
        return self._handles[name]


def assembled(name: str, shape: tuple[int, ...], parts: Sequence[tuple[Box, TensorView]]) -> TensorView:
    """Return the view of a tensor from those of the parts that cover it."""
    first = parts[0][1]
    if len(parts) == 1:
        return first
    readers = [(box, part.read) for box, part in parts]
    read = partial(read_assembled, readers, first.dtype)
    where = first.where if len({part.where for _, part in parts}) == 1 else f"{first.where} and others"
    return TensorView(name, shape, first.dtype, where, read)


def read_assembled(parts: Iterable[Part], dtype: torch.dtype, box: Box) -> torch.Tensor:
    """Return a box of a tensor, assembled from the parts that cover it. A part with the whole box isn't copied."""
    result: torch.Tensor | None = None
    for own, read in parts:
        shared = overlap(own, box)
        if shared is None:
            continue
        data = read(shifted(shared, origin(own), -1))
        if shared == box:
            return data
        if result is None:
            result = torch.empty(extent(box), dtype=dtype)
        result[slices(shifted(shared, origin(box), -1))] = data
    return torch.empty(extent(box), dtype=dtype) if result is None else result


def read_strided(
    files: OpenFiles, path: Path, base: int, dtype: torch.dtype, stride: Sequence[int], box: Box
) -> torch.Tensor:
    """Return a box of a strided tensor whose first value is at byte `base` of a file."""
    shape = extent(box)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = dtype.itemsize
    first = sum(start * step for (start, _), step in zip(box, stride, strict=True))
    span = 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    if span == math.prod(shape) and tuple(stride) == row_major(shape):
        return torch.frombuffer(files.read(path, base + first * size, span * size), dtype=dtype).view(shape)
    if span <= _WASTE * math.prod(shape) or max(shape, default=1) == 1:
        data = files.read(path, base + first * size, span * size)
        flat = torch.frombuffer(data, dtype=dtype)
        return flat.as_strided(shape, tuple(stride)).contiguous()
    axis = next(axis for axis, length in enumerate(shape) if length > 1)
    result = torch.empty(shape, dtype=dtype)
    for row in range(shape[axis]):
        start = box[axis][0] + row
        part = (*box[:axis], (start, start + 1), *box[axis + 1 :])
        result.narrow(axis, row, 1).copy_(read_strided(files, path, base, dtype, stride, part))
    return result


def sampled_digest(paths: Iterable[Path], files: OpenFiles) -> str:
    """Return a digest of files' names and sizes, and of 64 KiB at the start, in the middle and at the end of each.

    torch's archives end with the checksums of what they hold, so other values give another digest.
    """
    sums = hashlib.sha256()
    for path in paths:
        size = files.size(path)
        sums.update(f"{path.parent.name}/{path.name} {size}\n".encode())
        for start in (0, size // 2, max(0, size - _SAMPLE)):
            sums.update(files.read(path, start, min(_SAMPLE, size - start)))
    return sums.hexdigest()
