"""Safetensors files: the checked header of a file, and the header of a new one. Doesn't need torch.

A file is 8 bytes (the length of the header, little-endian), the header (JSON: name to dtype, shape and offsets) and
the data (https://github.com/huggingface/safetensors, "Format"). Data is read with plain reads and not by a memory map:
what was mapped counts as memory of the process for as long as the file is open.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .regular_file import open_regular
from .tensor_error import TensorError
from .untrusted_values import is_shape, is_size, odd_name, shown

HEADER_LIMIT = 100_000_000  # bytes; the library's own
ITEM_SIZES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
"""Bytes of an element, by dtype in safetensors' words."""

_ALIGNMENT = 8  # the library pads the header so that the data begins at a multiple of it
_DOWNLOAD = "Download the file again, and compare its size with the source's."


@dataclass(frozen=True)
class TensorEntry:
    """The entry of a tensor in a file's header.

    Attributes:
        dtype: In safetensors' words, such as BF16.
        start: Bytes from the beginning of the file.
        size: Bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class FileHeader:
    """The checked header of a file.

    Attributes:
        entries: By name, in the order of the data.
        metadata: The text-to-text map under `__metadata__`.
        size: Bytes of the whole file.
        raw: The header's JSON.
    """

    path: Path
    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    size: int
    raw: bytes


def read_header(path: Path) -> FileHeader:
    """Read a file's header, and check that the data it describes fills the file exactly.

    Raises:
        TensorError: For a file that is truncated, longer than its header says, or no safetensors file.
    """
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            return _parse(path, stream, size)
    except _Invalid as fault:
        raise TensorError(
            "Invalid safetensors file", where=str(path), why=str(fault), hint=_DOWNLOAD
        ) from None


def header_bytes(tensors: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """Return the first bytes of a file with these tensors, up to the start of the data.

    Args:
        tensors: Name, dtype and shape, in the order of the data.
        metadata: What the header has under `__metadata__`.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in tensors:
        size = ITEM_SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % _ALIGNMENT)
    return len(raw).to_bytes(8, "little") + raw


def parse_json(raw: bytes) -> Any:
    """Parse JSON in UTF-8. Raises ValueError for invalid JSON and for a repeated key of an object."""
    try:
        return json.loads(raw.decode(), object_pairs_hook=_without_duplicates)
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply, or too large for this machine's memory") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} occurs twice")
        found[key] = value
    return found


class _Invalid(ValueError):
    """A fault of a header, as a sentence."""


def _parse(path: Path, stream: BinaryIO, size: int) -> FileHeader:
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, HEADER_LIMIT):
        raise _Invalid(
            f"Its header would have {length} bytes, and the file has {size}: it is truncated, or another."
        )
    raw = stream.read(length)
    try:
        header = parse_json(raw)
    except ValueError as error:
        raise _Invalid(f"Its header can't be read: {error}") from None
    if not isinstance(header, dict):
        raise _Invalid("Its header is not a JSON object.")
    metadata = header.pop("__metadata__", {})
    odd = odd_name(header)
    if odd is not None:
        raise _Invalid(f"Its header names a tensor {odd}.")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Invalid("Its `__metadata__` is not a map of text to text.")
    entries = [_entry(name, value, 8 + length) for name, value in header.items()]
    entries.sort(key=lambda entry: (entry.start, entry.size))
    _require_filled(entries, 8 + length, size)
    return FileHeader(path, {entry.name: entry for entry in entries}, metadata, size, raw)


def _entry(name: str, value: Any, begin: int) -> TensorEntry:
    try:
        dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
        if not (isinstance(dtype, str) and is_shape(shape) and is_size(start) and is_size(stop)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise _Invalid(f"The entry of {name} in its header is malformed.") from None
    if dtype not in ITEM_SIZES:
        raise _Invalid(f"{name} has the unsupported dtype {shown(dtype)}.")
    if stop - start != ITEM_SIZES[dtype] * math.prod(shape):
        raise _Invalid(f"{name} has {stop - start} bytes, which is not {dtype} of shape {list(shape)}.")
    return TensorEntry(name, dtype, tuple(shape), begin + start, stop - start)


def _require_filled(entries: Sequence[TensorEntry], begin: int, size: int) -> None:
    """Raise if the tensors overlap, leave gaps, or don't end at the file's end."""
    at = begin
    for entry in entries:
        if entry.start != at:
            raise _Invalid(f"{entry.name} starts at byte {entry.start}; it should start at {at}.")
        at += entry.size
        if at > size:
            raise _Invalid(f"It has {size} bytes: it is truncated within {entry.name}.")
    if at < size:
        raise _Invalid(f"It has {size} bytes, and its header describes {at}.")
