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
from typing import Any

import torch

from ..regular_file import read_regular
from ..safetensors_file import parse_json
from ..tensor_error import TensorError
from ..untrusted_values import is_file_name, is_shape, is_size, odd_name, shown
from .boxes import Box, any_overlap, origin, overlap
from .inert_pickle import LARGEST, is_made, read_pickle
from .tensor_views import OpenFiles, Part, TensorView, TensorViews, read_assembled
from .torch_files import SavedFile, dtype_of

METADATA = ".metadata"
CONFIG = "metadata.json"
_LARGEST_CONFIG = 1 << 20  # bytes; Megatron-core writes 100
# DistributedOptimizer.sharded_state_dict and ChainedOptimizer's prefix@core_v0.12.1 (megatron/core/optimizer/)
_TRAINING_STATE = re.compile(r"(chained_\d+\.)*optimizer\.")


@dataclass(frozen=True)
class _Chunk:
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    file: Path
    start: int
    length: int

    @property
    def box(self) -> Box:
        return tuple((at, at + size) for at, size in zip(self.origin, self.shape, strict=True))


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
            chunk = _placed(key, (), (), place, folder)
            ends[chunk.file] = max(ends.get(chunk.file, 0), chunk.start + chunk.length)
    for path, end in sorted(ends.items()):
        if not path.is_file():
            raise _invalid(path, "The file is missing.")
        if files.size(path) < end:
            raise _invalid(
                path, f"It has {files.size(path)} bytes, and {METADATA} places something up to {end}."
            )


def _read_metadata(folder: Path, files: OpenFiles) -> tuple[dict[str, Any], dict[str, list[tuple[Any, Any]]]]:
    path = folder / METADATA
    _check_config(folder)
    size = files.size(path)
    if size > LARGEST:
        raise _invalid(path, f"It has {size} bytes of at most {LARGEST}.")
    metadata = read_pickle(bytes(files.read(path, 0, size)), str(path))
    return _fields(metadata, path)


def _check_config(folder: Path) -> None:
    path = folder / CONFIG
    if not path.is_file():
        return  # a checkpoint of torch alone
    try:
        backend = parse_json(read_regular(path, _LARGEST_CONFIG)).get("sharded_backend")
    except (ValueError, AttributeError) as error:
        raise _invalid(path, str(error)) from error
    if backend != "torch_dist":
        raise TensorError(
            "Unsupported format of a dist checkpoint",
            where=str(path),
            why=f"It is {shown(backend)}, not 'torch_dist'.",
        )


def _fields(metadata: Any, path: Path) -> tuple[dict[str, Any], dict[str, list[tuple[Any, Any]]]]:
    """Return the stored entries by key, and each key's chunks as (index, location in a file)."""
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


def _tensor(
    key: str, entry: Any, places: list[tuple[Any, Any]], folder: Path, files: OpenFiles
) -> TensorView:
    path = folder / METADATA
    shape, properties = entry.get("size"), entry.get("properties")
    dtype = _dtype(properties)
    if not _is_shape(shape) or dtype is None:
        raise _invalid(path, f"The entry of {key} has no shape or no dtype.")
    sizes: dict[tuple[int, ...], tuple[int, ...]] = {}
    described = entry.get("chunks") or ()
    for chunk in described if isinstance(described, (list, tuple)) else (described,):
        if not is_made(chunk, "ChunkStorageMetadata") or not _is_shape(chunk.get("offsets")):
            raise _invalid(path, f"Invalid chunk of {key}.")
        if chunk.get("offsets") in sizes:
            raise _invalid(path, f"{key} has two chunks at {list(chunk.get('offsets'))}.")
        sizes[chunk.get("offsets")] = chunk.get("sizes")
    chunks: list[_Chunk] = []
    for index, place in places:
        begin = index.get("offset")
        begin = (0,) * len(shape) if begin is None else begin
        if not _is_shape(begin) or begin not in sizes:
            raise _invalid(path, f"A chunk of {key} in a file is not in the tensor's list.")
        chunks.append(_placed(key, begin, sizes.pop(begin), place, folder))
    if sizes:
        raise _invalid(
            path, f"{len(sizes)} chunks of {key} are in no file, such as that at {list(next(iter(sizes)))}."
        )
    _check_cover(key, shape, chunks, path)

    parts: dict[tuple[int, ...], Part] = {
        chunk.origin: (chunk.box, partial(_read_chunk, key, dtype, chunk, files)) for chunk in chunks
    }

    def read(box: Box) -> torch.Tensor:
        first = parts.get(origin(box))
        if first is not None and overlap(first[0], box) == box:
            return read_assembled(
                [first], dtype, box
            )  # one of hundreds of experts: the others are not looked at
        return read_assembled(parts.values(), dtype, box)

    return TensorView(key, shape, dtype, str(path), read)


def _dtype(properties: Any) -> torch.dtype | None:
    if not is_made(properties, "TensorProperties"):
        return None
    state = properties.state
    if isinstance(state, tuple) and state:  # TensorProperties.__getstate__
        return dtype_of(state[0])
    return dtype_of(properties.get("dtype"))


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and is_shape(value)


def _placed(key: str, origin: tuple[int, ...], shape: Any, place: Any, folder: Path) -> _Chunk:
    name, start, length = place.get("relative_path"), place.get("offset"), place.get("length")
    if place.get("transform_descriptors"):
        raise _invalid(
            folder / METADATA, f"{key} was written with an extension of torch, such as compression."
        )
    if (
        not is_file_name(name)
        or not is_size(start)
        or not is_size(length)
        or not _is_shape(shape)
        or len(shape) != len(origin)
    ):
        raise _invalid(folder / METADATA, f"A chunk of {key} is located outside the files of this folder.")
    return _Chunk(origin, shape, folder / name, start, length)


def _check_cover(key: str, shape: tuple[int, ...], chunks: list[_Chunk], path: Path) -> None:
    """Raise TensorError unless every value is in exactly one chunk."""
    held = 0
    for chunk in chunks:
        if len(chunk.shape) != len(shape) or any(
            stop > size for (_, stop), size in zip(chunk.box, shape, strict=True)
        ):
            raise _invalid(path, f"The chunk of {key} at {list(chunk.origin)} ends outside of the tensor.")
        held += math.prod(chunk.shape)
    if held != math.prod(shape) or any_overlap([chunk.box for chunk in chunks]):
        raise _invalid(path, f"The chunks of {key} have {held} of {math.prod(shape)} values, or overlap.")


def _read_chunk(key: str, dtype: torch.dtype, chunk: _Chunk, files: OpenFiles, box: Box) -> torch.Tensor:
    saved = SavedFile(files, chunk.file, chunk.start, chunk.length)
    found = saved.tensor(saved.content)
    if found is None or found.shape != chunk.shape or found.dtype != dtype:
        raise TensorError(
            "A file and the metadata disagree",
            where=f"{chunk.file} at byte {chunk.start}",
            why=f"{METADATA} expects a chunk of {key} there: {list(chunk.shape)} in {dtype}.",
            hint="They may be of two checkpoints. Copy or download both again.",
        )
    return found.view(files, key).read(box)


def _invalid(path: Path, why: str) -> TensorError:
    return TensorError("Invalid dist checkpoint", where=str(path), why=why, hint="Copy or download it again.")
