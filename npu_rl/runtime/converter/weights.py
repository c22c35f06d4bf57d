"""The tensors of a Hugging Face folder, read one at a time from its safetensors files.

A file is 8 bytes (the length of the header, little-endian), the header (JSON: name to dtype, shape and offsets) and
the data (https://github.com/huggingface/safetensors, "Format"). Read with plain reads and not by a memory map: what
was mapped counts as memory of the process for as long as the file is open.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import ConversionError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_HEADER_LIMIT = 100_000_000  # bytes; safetensors' own
_SIZES = {"BF16": 2, "F16": 2, "F32": 4}  # bytes of an element


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: `dtype` in safetensors' words, `start` in bytes from the beginning of `file`."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int


class Weights:
    """The tensors in a folder. Only the index is read at first, and of each file that is asked for, its header.

    Raises ConversionError for a folder, an index, a file or a tensor that is not as it should be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headers: dict[str, dict[str, Entry]] = {}
        self._files = self._index()
        self._open: tuple[str, BinaryIO] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    @property
    def opened(self) -> frozenset[str]:
        """The files whose header was read."""
        return frozenset(self._headers)

    def entry(self, name: str) -> Entry:
        file = self._files.get(name)
        if file is None:
            raise ConversionError(f"{self.folder} has no tensor {name}: the model's files are not complete")
        found = self._header(file).get(name)
        if found is None:
            raise ConversionError(f"{self.folder / file} lacks {name}, which {INDEX} lists for it")
        return found

    def read(self, name: str) -> Any:
        """The tensor (torch.Tensor on the CPU, memory of its own), in the dtype it is stored in."""
        import torch

        entry = self.entry(name)
        dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[entry.dtype]
        data = bytearray(entry.bytes)
        file = self._file(entry.file)
        try:
            file.seek(entry.start)
            count = file.readinto(data)  # type: ignore[attr-defined]
        except OSError as error:
            raise ConversionError(f"{self.folder / entry.file} can't be read: {error}") from error
        if count != entry.bytes:
            raise ConversionError(
                f"{self.folder / entry.file} ends within {name}: it was cut off; get it again"
            )
        return torch.frombuffer(data, dtype=dtype).view(entry.shape)

    def close(self) -> None:
        if self._open:
            self._open[1].close()
            self._open = None

    def _index(self) -> dict[str, str]:
        path = self.folder / INDEX
        if not path.exists():
            if not (self.folder / SINGLE).exists():
                raise ConversionError(
                    f"{self.folder} has neither {INDEX} nor {SINGLE}: name the folder of a model"
                )
            return dict.fromkeys(self._header(SINGLE), SINGLE)
        try:
            files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConversionError(f"{path} can't be read: {type(error).__name__}: {error}") from error
        if not isinstance(files, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in files.values()
        ):
            raise ConversionError(f"{path}: `weight_map` does not map each tensor to a file of this folder")
        lost = sorted(file for file in set(files.values()) if not (self.folder / file).is_file())
        if lost:
            raise ConversionError(
                f"{self.folder} lacks {len(lost)} of the files that {INDEX} names: {', '.join(lost[:3])}"
                f"{' …' * (len(lost) > 3)}; get them, or make them visible on this machine"
            )
        return files

    def _header(self, file: str) -> dict[str, Entry]:
        if file not in self._headers:
            path = self.folder / file
            try:
                with path.open("rb") as stream:
                    self._headers[file] = read_header(stream, file, path.stat().st_size)
            except (OSError, ValueError) as error:
                raise ConversionError(f"{path} is no readable safetensors file: {error}") from error
        return self._headers[file]

    def _file(self, name: str) -> BinaryIO:
        if self._open is None or self._open[0] != name:
            self.close()
            self._open = (name, (self.folder / name).open("rb", buffering=0))
        return self._open[1]


def read_header(stream: BinaryIO, file: str, size: int) -> dict[str, Entry]:
    """The tensors of a safetensors file of `size` bytes. Raises ValueError if it is none, or was cut off."""
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, _HEADER_LIMIT):
        raise ValueError(f"its header would have {length} bytes, the file has {size}")
    header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return {
        name: _entry(name, of, file, 8 + length, size)
        for name, of in header.items()
        if name != "__metadata__"
    }


def _entry(name: str, of: Any, file: str, base: int, size: int) -> Entry:
    try:
        dtype, shape, (start, stop) = of["dtype"], tuple(of["shape"]), of["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the entry of {name} in its header is not well-formed") from None
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"the entry of {name} in its header is not well-formed")
    if stop < start or base + stop > size:
        raise ValueError(f"it has {size} bytes, and {name} would end at {base + stop}: it was cut off")
    if dtype in _SIZES and stop - start != _SIZES[dtype] * math.prod(shape):
        raise ValueError(f"{name} has {stop - start} bytes, which is not {dtype} of shape {list(shape)}")
    return Entry(file, dtype, shape, base + start, stop - start)
