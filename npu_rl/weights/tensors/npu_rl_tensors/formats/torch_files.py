"""Files written by torch.save: where each tensor is.

Such a file is a zip archive, nothing in it compressed: `data.pkl`, and one entry for each storage
(torch/serialization.py, `_save`). A tensor is a call of `torch._utils._rebuild_tensor_v2` with its storage, offset,
size and stride. Older files of torch, which are no zip archives, are refused.
"""

from __future__ import annotations

import math
import mmap
import struct
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..memory_limit import memory_limit
from ..tensor_error import TensorError
from ..untrusted_values import is_shape, is_size
from .boxes import Box, row_major
from .inert_pickle import LARGEST, Inert, is_made, read_pickle
from .tensor_views import OpenFiles, TensorView, read_strided

_LOCAL_HEADER, _LOCAL_MAGIC = 30, b"PK\x03\x04"  # bytes before the name of an entry, and the first of them
_AGAIN = "Copy or download it again."
_STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "HalfStorage": torch.float16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in a file. `start` is the byte offset of its first value."""

    path: Path
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def view(self, files: OpenFiles, name: str) -> TensorView:
        """Return a view of the tensor that is read by box."""

        def read(box: Box) -> torch.Tensor:
            return read_strided(files, self.path, self.start, self.dtype, self.stride, box)

        def reshape(shape: tuple[int, ...]) -> TensorView:
            return replace(self, shape=shape, stride=row_major(shape)).view(files, name)

        dense = self.stride == row_major(self.shape)
        return TensorView(name, self.shape, self.dtype, str(self.path), read, reshape if dense else None)


class SavedFile:
    """What torch.save wrote into a file, or into a part of one.

    Attributes:
        content: The object, with each tensor as what `tensor` takes.

    Raises:
        TensorError: If the file is not torch.save's, is truncated, or names code that doesn't belong in it.
    """

    def __init__(self, files: OpenFiles, path: Path, start: int = 0, length: int | None = None) -> None:
        size = files.size(path)
        self._files, self._path, self._start = files, path, start
        self._length = size - start if length is None else length
        self._where = f"{path}" if start == 0 else f"{path} at byte {start}"
        if start + self._length > size:
            raise TensorError(
                "A file is truncated",
                where=str(path),
                why=f"It has {size} bytes, and the object at byte {start} ends at {start + self._length}.",
                hint=_AGAIN,
            )
        self._entries = self._read_entries()
        if "byteorder" in self._entries and self._read("byteorder", 10) != b"little":
            raise TensorError("A file was written on a big-endian machine", where=self._where)
        self.content = read_pickle(self._read("data.pkl", LARGEST), self._where)

    def tensor(self, value: Any) -> SavedTensor | None:
        """Return where a tensor is; None of what is no tensor. Raises TensorError for one beyond its storage."""
        if is_made(value, "_rebuild_parameter"):
            value = value.args[0] if value.args else None
        if not is_made(value, "_rebuild_tensor_v2") and not is_made(value, "_rebuild_tensor_v3"):
            return None
        return self.rebuilt(value.args)

    def rebuilt(self, arguments: Any) -> SavedTensor:
        """Return where a tensor is, by the arguments of torch._utils._rebuild_tensor_v2, or _v3 with its dtype."""
        if not isinstance(arguments, tuple) or len(arguments) < 4:
            raise self._damaged("A tensor has no storage, offset, size and stride.")
        storage, offset, shape, stride = arguments[:4]
        if not (isinstance(storage, tuple) and len(storage) == 5 and isinstance(storage[2], str)):
            raise self._damaged("A tensor has no storage.")
        kind = storage[1].name.rpartition(".")[2] if is_class(storage[1]) else ""
        dtype = _STORAGES.get(kind) or dtype_of(arguments[6] if len(arguments) > 6 else None)
        if dtype is None or not (is_size(offset) and is_shape(shape) and is_shape(stride)):
            raise self._damaged("A tensor has no dtype, or an invalid offset, size or stride.")
        begin, count = self._place(f"data/{storage[2]}")
        span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=False))
        beyond = 0 not in shape and (offset + span) * dtype.itemsize > count
        if len(shape) != len(stride) or beyond or math.prod(shape) > max(count, 1):
            raise self._damaged(
                f"A tensor {list(shape)} in {dtype} needs more than the {count} bytes of its storage."
            )
        return SavedTensor(self._path, begin + offset * dtype.itemsize, tuple(shape), tuple(stride), dtype)

    def _read_entries(self) -> dict[str, zipfile.ZipInfo]:
        """Return the archive's entries by their names in its folder."""
        # zipfile looks from the end, and skips what is before
        skipped = self._start % mmap.ALLOCATIONGRANULARITY
        handle, length = self._files.handle(self._path), skipped + max(self._length, 1)  # 0 would map all
        try:
            with mmap.mmap(handle, length, prot=mmap.PROT_READ, offset=self._start - skipped) as part:
                archive: Any = part
                with memory_limit(0):
                    entries = zipfile.ZipFile(archive).infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, MemoryError) as error:
            raise self._damaged(f"{error}; the format of torch before 1.6 is not read.") from error
        for entry in entries:
            entry.header_offset -= skipped
        # torch reads from the folder of the first entry, whatever the case (caffe2/serialize/inline_container.cc)
        names = [entry.filename for entry in entries]
        prefix = names[0].partition("/")[0] + "/" if names else ""
        if len({name.lower() for name in names}) < len(names) or not all(n.startswith(prefix) for n in names):
            raise self._damaged("Two of its entries have one name, or one is outside of its folder.")
        return {entry.filename.removeprefix(prefix): entry for entry in entries}

    def _place(self, name: str) -> tuple[int, int]:
        """Return the file offset and the size of an entry's bytes."""
        entry = self._entries.get(name)
        if entry is None:
            raise self._damaged(f"It has no entry {ascii(name)[:100]}.")
        stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        if not stored or entry.flag_bits & 1:
            raise self._damaged(f"{name} is compressed or encrypted, which torch.save never writes.")
        at = entry.header_offset
        header = b""
        if 0 <= at <= self._length - _LOCAL_HEADER:
            header = self._files.read(self._path, self._start + at, _LOCAL_HEADER)
        begin = at + _LOCAL_HEADER
        if header[:4] == _LOCAL_MAGIC:
            begin += sum(struct.unpack("<HH", header[26:30]))  # of name and extra field
        if header[:4] != _LOCAL_MAGIC or begin + entry.file_size > self._length:
            raise self._damaged(f"{name} is not where the archive's list has it.")
        return self._start + begin, entry.file_size

    def _read(self, name: str, most: int) -> bytes:
        begin, count = self._place(name)
        if count > most:
            raise self._damaged(f"{name} has {count} bytes of at most {most}.")
        return bytes(self._files.read(self._path, begin, count))

    def _damaged(self, why: str) -> TensorError:
        return TensorError("Invalid file of torch.save", where=self._where, why=why, hint=_AGAIN)


def is_class(value: Any) -> bool:
    """Return whether a value of a pickle is a class or function that it names."""
    return isinstance(value, type) and issubclass(value, Inert)


def dtype_of(value: Any) -> torch.dtype | None:
    """Return the dtype that a pickle names; None of anything else."""
    module, _, name = value.name.rpartition(".") if is_class(value) else ("", "", "")
    found = getattr(torch, name, None) if module == "torch" else None
    return found if isinstance(found, torch.dtype) else None
