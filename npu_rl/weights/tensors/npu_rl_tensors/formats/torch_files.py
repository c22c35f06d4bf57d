"""Files written by torch.save: the offset of each tensor, read with a restricted unpickler.

Such a file is a zip archive, nothing in it compressed: `data.pkl`, and one entry for each storage
(torch/serialization.py, `_save`). A tensor is a call of `torch._utils._rebuild_tensor_v2` with its storage, offset,
size and stride. Older files of torch, which are no zip archives, are refused.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ..tensor_error import TensorError
from ..untrusted_values import is_shape, shown
from .boxes import Box, row_major
from .restricted_pickle import LARGEST, Globals, Inert, Ordered, read_pickle
from .tensor_views import OpenFiles, TensorView, read_strided

_SMALL = 64 * 1024  # bytes
_LOCAL_HEADER, _LOCAL_MAGIC = 30, b"PK\x03\x04"  # bytes before the name of an entry, and the first of them
_AGAIN = "Copy or download it again."
_INERT = ("argparse", "megatron", "mindspeed", "mindspeed_llm", "mindspeed_rl", "numpy", "_codecs")


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


@dataclass(frozen=True)
class _Storage:
    path: Path
    start: int
    bytes: int
    dtype: torch.dtype | None  # None: an untyped storage


def read_saved(
    files: OpenFiles,
    path: Path,
    start: int = 0,
    length: int | None = None,
    known: Globals = MappingProxyType({}),
) -> Any:
    """Return an object that torch.save wrote, with each tensor as a SavedTensor.

    `start` and `length` select a part of the file. Other objects, such as a run's arguments, are read as `Inert`.
    `known`: further stand-ins.

    Raises:
        TensorError: If the file is not torch.save's, is truncated, or names code that doesn't belong in it.
    """
    size = files.size(path)
    length = size - start if length is None else length
    if start < 0 or length < 0 or start + length > size:
        raise TensorError(
            "A file is truncated",
            where=str(path),
            why=f"It has {size} bytes, and the object at byte {start} ends at {start + length}.",
            hint=_AGAIN,
        )
    where = f"{path}" if start == 0 else f"{path} at byte {start}"
    archive = _Archive(files, path, start, length, where)

    def storage(pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[2], str)):
            raise _damaged(where, "It has a persistent id that is not a storage.")
        begin, count = archive.place(f"data/{pid[2]}")
        kind = pid[1]
        if not isinstance(kind, _StorageKind):
            raise _damaged(where, f"The type of a storage is {shown(kind)}.")
        return _Storage(path, begin, count, kind.dtype)

    if archive.text("byteorder") not in (None, "little"):
        raise TensorError("A file was written on a big-endian machine", where=where)
    data = archive.bytes("data.pkl")
    return read_pickle(data, where, {**_known(), **known}, inert=_INERT, persistent=storage)


class _Archive:
    def __init__(self, files: OpenFiles, path: Path, start: int, length: int, where: str) -> None:
        self._files, self._path, self._start, self._length, self._where = files, path, start, length, where
        try:
            with zipfile.ZipFile(_part(files, path, start, length)) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise _damaged(where, f"{error}; the format of torch before 1.6 is not read.") from error
        # torch reads from the folder of the first entry, whatever the case (caffe2/serialize/inline_container.cc)
        prefix = entries[0].filename.partition("/")[0] + "/" if entries else ""
        self._entries: dict[str, zipfile.ZipInfo] = {}
        folded: set[str] = set()
        for entry in entries:
            name = entry.filename
            if not name.startswith(prefix):
                raise _damaged(where, f"It has {shown(name)}, which is not in its folder {shown(prefix)}.")
            if name.lower() in folded:
                raise _damaged(where, f"It has {shown(name)} twice.")
            folded.add(name.lower())
            self._entries[name.removeprefix(prefix)] = entry
        if "data.pkl" not in self._entries:
            raise _damaged(where, "It has no data.pkl.")

    def place(self, name: str) -> tuple[int, int]:
        """Return the file offset and the size of an entry's bytes."""
        entry = self._entries.get(name)
        if entry is None:
            raise _damaged(self._where, f"It has no entry {name}.")
        if (
            entry.compress_type != zipfile.ZIP_STORED
            or entry.flag_bits & 1
            or entry.compress_size != entry.file_size
        ):
            raise _damaged(self._where, f"{name} is compressed or encrypted, which torch.save never writes.")
        at = entry.header_offset
        if at + _LOCAL_HEADER > self._length:
            raise _damaged(self._where, f"{name} begins after the file's end.")
        header = self._files.read(self._path, self._start + at, _LOCAL_HEADER)
        if header[:4] != _LOCAL_MAGIC:
            raise _damaged(self._where, f"{name} does not begin where the archive's list has it.")
        begin = at + _LOCAL_HEADER + sum(struct.unpack("<HH", header[26:30]))  # of name and extra field
        if begin + entry.file_size > self._length:
            raise _damaged(self._where, f"{name} ends after the file's end.")
        return self._start + begin, entry.file_size

    def bytes(self, name: str, most: int = LARGEST) -> bytes:
        begin, count = self.place(name)
        if count > most:
            raise _damaged(self._where, f"{name} has {count} bytes of at most {most}.")
        return bytes(self._files.read(self._path, begin, count))

    def text(self, name: str) -> str | None:
        return self.bytes(name, most=100).decode("ascii", "replace") if name in self._entries else None


def _part(files: OpenFiles, path: Path, start: int, length: int) -> Any:
    """Return a part of a file. Small parts, such as a norm's, are read at once."""
    small = length <= _SMALL
    return io.BytesIO(files.read(path, start, length)) if small else _Part(files, path, start, length)


class _Part:
    """A part of a file, with the methods that zipfile needs."""

    def __init__(self, files: OpenFiles, path: Path, start: int, length: int) -> None:
        self._files, self._path, self._start, self._length, self._at = files, path, start, length, 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if at < 0:
            raise OSError("a seek before the beginning")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._length - self._at, 0)
        count = left if size is None or size < 0 else min(size, left)
        if count > LARGEST:
            raise OSError(f"its list of entries would have {count} bytes")
        data = bytes(self._files.read(self._path, self._start + self._at, count))
        self._at += count
        return data


@dataclass(frozen=True)
class _StorageKind:
    dtype: torch.dtype | None

    def __setstate__(self, state: Any) -> None:
        raise ValueError("an attribute of a storage's type")  # of all files that are read


def torch_globals() -> dict[tuple[str, str], Any]:
    """Return the names that any torch file may contain, such as dtypes."""
    names = (
        "bfloat16 float16 float32 float64 int8 int16 int32 int64 uint8 bool float8_e4m3fn float8_e5m2 complex64 "
        "complex128"
    )
    found: dict[tuple[str, str], Any] = {
        ("torch", name): getattr(torch, name) for name in names.split() if hasattr(torch, name)
    }
    found["torch", "Size"] = _size
    found["torch", "device"] = _kept("torch.device")
    found["collections", "OrderedDict"] = Ordered
    found["torch.serialization", "_get_layout"] = _kept("torch.layout")
    return found


def _kept(of: str) -> type[Inert]:
    return type("Inert", (Inert,), {"of": of})


def _size(values: Any = ()) -> tuple[int, ...]:
    found = tuple(values)
    if is_shape(found):
        return tuple(found)
    raise ValueError(f"a size that no tensor has, of {len(found)} axes")


@lru_cache(maxsize=1)
def _known() -> Globals:
    kinds = {
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
        "UntypedStorage": None,
    }
    known: dict[tuple[str, str], Any] = dict(torch_globals())
    known |= {("torch", name): _StorageKind(dtype) for name, dtype in kinds.items()}
    known["torch.storage", "UntypedStorage"] = _StorageKind(None)
    known["torch._utils", "_rebuild_tensor_v2"] = rebuild_tensor
    known["torch._utils", "_rebuild_tensor_v3"] = _tensor_of_dtype
    known["torch._utils", "_rebuild_parameter"] = _parameter
    known["_io", "BytesIO"] = _kept("io.BytesIO")
    known["collections", "defaultdict"] = _default_dict
    known["builtins", "dict"] = dict
    known["builtins", "set"] = set
    return known


def _default_dict(_factory: Any = None, *_more: Any) -> dict[Any, Any]:
    return {}


def rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_more: Any) -> Any:
    """Stand in for torch._utils._rebuild_tensor_v2."""
    if not isinstance(storage, _Storage) or storage.dtype is None:
        raise ValueError("a tensor without a storage of its type")
    return _checked(storage, storage.dtype, offset, shape, stride)


def _tensor_of_dtype(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_more: Any
) -> Any:
    if not isinstance(storage, _Storage) or not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor without a storage or a dtype")
    return _checked(storage, dtype, offset, shape, stride)


def _parameter(data: Any, *_more: Any) -> Any:
    return data


def _checked(storage: _Storage, dtype: torch.dtype, offset: Any, shape: Any, stride: Any) -> SavedTensor:
    """Raise ValueError if the tensor extends beyond its storage."""
    shape, stride = _size(shape), _size(stride)
    if len(shape) != len(stride) or type(offset) is not int or offset < 0:
        raise ValueError(f"a tensor of shape {list(shape)} with the stride {list(stride)}")
    span = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if (offset + span) * dtype.itemsize > storage.bytes or math.prod(shape) > max(storage.bytes, 1):
        raise ValueError(
            f"a tensor {list(shape)} in {dtype} needs more than the {storage.bytes} bytes of its storage"
        )
    return SavedTensor(storage.path, storage.start + offset * dtype.itemsize, shape, stride, dtype)


def _damaged(where: str, why: str) -> TensorError:
    return TensorError("Invalid file of torch.save", where=where, why=why, hint=_AGAIN)
