"""Megatron-core's `torch_dist` checkpoints: the tensors of a folder with `.metadata` and `*.distcp` files.

`.metadata` is a pickle of torch.distributed.checkpoint.metadata.Metadata: for each key its shape, dtype and chunks, and
for each chunk the file, offset and length. There, the chunk is what torch.save wrote (torch/distributed/checkpoint/
filesystem.py, `_write_item`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import torch

from ..hf_checkpoint import read_object
from ..tensor_error import TensorError
from ..untrusted_values import is_file_name, is_shape, is_size, odd_name, shown
from .boxes import Box, covers, extent, origin, overlap
from .inert_pickle import LARGEST, is_made, read_pickle
from .tensor_views import OpenFiles, Part, TensorView, TensorViews, read_assembled
from .torch_files import SavedFile, dtype_of

METADATA = ".metadata"
CONFIG = "metadata.json"
# DistributedOptimizer.sharded_state_dict and ChainedOptimizer's prefix@core_v0.12.1 (megatron/core/optimizer/)
_TRAINING_STATE = re.compile(r"(chained_\d+\.)*optimizer\.")


@dataclass(frozen=True)
class _Chunk:
    """What a file has at an offset; `box` is its place in the tensor, empty for an object."""

    box: Box
    file: Path
    start: int
    length: int


def is_dist_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a `torch_dist` checkpoint."""
    return (folder / METADATA).is_file()


def read_dist_checkpoint(folder: Path, files: OpenFiles) -> TensorViews:
    """Open a checkpoint's tensors and objects by key, without reading values.

    Raises:
        TensorError: If its metadata is damaged, names what has no place in it, or doesn't fit its files: a chunk that
            lies outside of its tensor or its file, one twice, or values that no chunk has.
    """
    stored, places = _read_metadata(folder, files)
    tensors: dict[str, TensorView] = {}
    objects: list[str] = []
    for key, entry in stored.items():
        if is_made(entry, "BytesStorageMetadata") or _TRAINING_STATE.match(key):
            objects.append(key)
        else:
            tensors[key] = _tensor(key, entry, places.get(key, []), folder, files)
    return TensorViews(tensors, objects=tuple(objects))


def require_whole_files(folder: Path, files: OpenFiles) -> None:
    """Raise TensorError if a file of tensors or objects in the metadata is missing or too short."""
    _, places = _read_metadata(folder, files)
    ends: dict[Path, int] = {}
    for key, found in places.items():
        for _, place in found:
            chunk = _placed(key, (), place, folder)
            ends[chunk.file] = max(ends.get(chunk.file, 0), chunk.start + chunk.length)
    for path, end in sorted(ends.items()):
        size = files.size(path) if path.is_file() else 0
        if size < end:
            raise _invalid(path, f"It has {size} bytes, and {METADATA} places something up to {end}.")


def _read_metadata(folder: Path, files: OpenFiles) -> tuple[dict[str, Any], dict[str, list[tuple[Any, Any]]]]:
    """Return the stored entries by key, and each key's chunks as (index, location in a file)."""
    path = folder / METADATA
    _check_config(folder)
    size = files.size(path)
    if size > LARGEST:
        raise _invalid(path, f"It has {size} bytes of at most {LARGEST}.")
    metadata = read_pickle(bytes(files.read(path, 0, size)), str(path))
    stored = metadata.get("state_dict_metadata") if is_made(metadata, "Metadata") else None
    places = metadata.get("storage_data") if is_made(metadata, "Metadata") else None
    if not isinstance(stored, dict) or not isinstance(places, dict):
        raise _invalid(path, "This is not a metadata file of torch.distributed.checkpoint.")
    by_key: dict[str, list[tuple[Any, Any]]] = {}
    for index, place in places.items():
        key = index.get("fqn") if is_made(index, "MetadataIndex") else None
        if not isinstance(key, str) or not is_made(place, "_StorageInfo"):
            raise _invalid(path, "Invalid entry in its storage_data.")
        by_key.setdefault(key, []).append((index, place))
    odd = odd_name(stored)
    if odd is not None:
        raise _invalid(path, f"It names a tensor {odd}.")
    for key, entry in stored.items():
        if not is_made(entry, "TensorStorageMetadata") and not is_made(entry, "BytesStorageMetadata"):
            raise _invalid(path, f"The entry of {key} is neither a tensor nor an object.")
    return stored, by_key


def _check_config(folder: Path) -> None:
    path = folder / CONFIG  # missing in a checkpoint of torch alone
    backend = read_object(path).get("sharded_backend") if path.is_file() else "torch_dist"
    if backend != "torch_dist":
        raise TensorError(
            "Unsupported format of a dist checkpoint",
            where=str(path),
            why=f"It is {shown(backend)}, not 'torch_dist'.",
        )


def _tensor(
    key: str, entry: Any, places: list[tuple[Any, Any]], folder: Path, files: OpenFiles
) -> TensorView:
    path = folder / METADATA
    shape, dtype = entry.get("size"), _dtype(entry.get("properties"))
    if not _is_shape(shape) or dtype is None:
        raise _invalid(path, f"The entry of {key} has no shape or no dtype.")
    sizes: dict[tuple[int, ...], Any] = {}
    described = entry.get("chunks") or ()
    for chunk in described if isinstance(described, (list, tuple)) else (described,):
        begin = chunk.get("offsets") if is_made(chunk, "ChunkStorageMetadata") else None
        if not _is_shape(begin) or begin in sizes:
            raise _invalid(path, f"{key} has an invalid chunk, or one twice.")
        sizes[begin] = chunk.get("sizes")
    parts: dict[tuple[int, ...], Part] = {}
    for index, place in places:
        begin = index.get("offset")
        begin = (0,) * len(shape) if begin is None else begin
        size = sizes.pop(begin, None) if _is_shape(begin) else None
        if not _is_shape(size) or len(size) != len(begin):
            raise _invalid(path, f"A chunk of {key} in a file is not in the tensor's list.")
        box = tuple((at, at + length) for at, length in zip(begin, size, strict=True))
        chunk = _placed(key, box, place, folder)
        parts[begin] = (box, partial(_read_chunk, key, dtype, chunk, files))
    boxes = [box for box, _ in parts.values() if 0 not in extent(box)]
    if sizes or not covers(boxes, shape):
        held = sum(math.prod(extent(box)) for box in boxes)
        why = f"The chunks of {key} have {held} of {math.prod(shape)} values, overlap, or end outside of it"
        raise _invalid(path, why + (f"; {len(sizes)} of them are in no file." if sizes else "."))

    def read(box: Box) -> torch.Tensor:
        first = parts.get(origin(box))
        if first is not None and overlap(first[0], box) == box:
            return read_assembled([first], dtype, box)  # of hundreds of experts the others are not looked at
        return read_assembled(parts.values(), dtype, box)

    return TensorView(key, shape, dtype, str(path), read)


def _dtype(properties: Any) -> torch.dtype | None:
    if not is_made(properties, "TensorProperties"):
        return None
    state = properties.state
    # a tuple of TensorProperties.__getstate__
    return dtype_of(state[0] if isinstance(state, tuple) and state else properties.get("dtype"))


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and is_shape(value)


def _placed(key: str, box: Box, place: Any, folder: Path) -> _Chunk:
    name, start, length = (place.get(field) for field in ("relative_path", "offset", "length"))
    if place.get("transform_descriptors"):
        why = f"{key} was written with an extension of torch, such as compression."
        raise _invalid(folder / METADATA, why)
    if not (is_file_name(name) and is_size(start) and is_size(length)):
        raise _invalid(folder / METADATA, f"A chunk of {key} is located outside the files of this folder.")
    return _Chunk(box, folder / name, start, length)


def _read_chunk(key: str, dtype: torch.dtype, chunk: _Chunk, files: OpenFiles, box: Box) -> torch.Tensor:
    saved = SavedFile(files, chunk.file, chunk.start, chunk.length)
    found = saved.tensor(saved.content)
    if found is None or found.shape != extent(chunk.box) or found.dtype != dtype:
        raise TensorError(
            "A file and the metadata disagree",
            where=f"{chunk.file} at byte {chunk.start}",
            why=f"{METADATA} expects a chunk of {key} there: {list(extent(chunk.box))} in {dtype}.",
            hint="They may belong to two checkpoints. Copy or download both again.",
        )
    return found.view(files, key).read(box)


def _invalid(path: Path, why: str) -> TensorError:
    return TensorError("Invalid dist checkpoint", where=str(path), why=why, hint="Copy or download it again.")
