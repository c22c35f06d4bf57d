"""verl's FSDP checkpoints: one `model_world_size_W_rank_R.pt` per rank, with Hugging Face tensor names.

`FSDPCheckpointManager.save_checkpoint` (verl/utils/checkpoint/fsdp_checkpoint_manager.py@v0.5.0) saves what
`state_dict()` gives with SHARDED_STATE_DICT: DTensors where it passes a device mesh, ShardedTensors without one, and
plain tensors for buffers and on a single rank. Each is rebuilt here from the local tensor and the placements beside it.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..hf_checkpoint import read_object
from ..tensor_error import TensorError
from ..untrusted_values import is_shape, odd_name, shown
from .boxes import Box, any_overlap, extent, whole
from .inert_pickle import Inert, is_made
from .tensor_views import OpenFiles, TensorView, TensorViews, read_assembled
from .torch_files import SavedFile, SavedTensor, dtype_of, is_class

CONFIG = "fsdp_config.json"
_FILE = re.compile(r"model_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")
_SAMPLE = (
    64 * 1024
)  # bytes at a file's end that its digest has: torch.save puts the CRC-32 of each tensor there
_AGAIN = "Copy it again from where it was written, or choose another step."


def is_fsdp_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like an FSDP checkpoint."""
    return (folder / CONFIG).is_file() or any(folder.glob("model_world_size_*_rank_*.pt"))


def read_fsdp_checkpoint(folder: Path, files: OpenFiles) -> TensorViews:
    """Open a checkpoint without reading tensors.

    Raises:
        TensorError: If a rank's file is missing, was cut off or names code, or the ranks don't fit together.
    """
    ranks = [_read_rank(path, files) for path in _rank_files(folder)]
    for rank in ranks[1:]:
        odd = sorted(rank.tensors.keys() ^ ranks[0].tensors.keys())
        if odd:
            raise _invalid(rank.path, f"Only one of it and {ranks[0].path.name} has {odd[0]}.")
    tensors: dict[str, TensorView] = {}
    copies: dict[str, list[TensorView]] = {}
    for name in ranks[0].tensors:
        tensors[name], *further = _assembled(name, [(rank.path, rank.tensors[name]) for rank in ranks], files)
        if further:
            copies[name] = further
    return TensorViews(tensors, copies, objects=ranks[0].objects)


# -- the ranks' files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardedValue:
    """One rank's part of a tensor, as described in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    saved: SavedFile
    state: Any

    def attribute(self, name: str) -> Any:
        """Return an attribute of the tensor."""
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return next((part[name] for part in parts if isinstance(part, dict) and name in part), None)


@dataclass(frozen=True)
class _Rank:
    path: Path
    tensors: dict[str, SavedTensor | ShardedValue]
    objects: tuple[str, ...]


def _rank_files(folder: Path) -> list[Path]:
    found: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            of_world = found.setdefault(int(match[1]), {})
            if int(match[2]) in of_world:
                raise _invalid(path, f"{of_world[int(match[2])].name} is of the same rank.")
            of_world[int(match[2])] = path
    world = read_object(folder / CONFIG).get("world_size") if (folder / CONFIG).is_file() else None
    if world is None and len(found) == 1:
        world = next(iter(found))
    if type(world) is not int or world < 1:
        why = f"It has files of {len(found)} world sizes, and no {CONFIG} that names one."
        raise _invalid(folder, why if world is None else f"{CONFIG} has the world_size {shown(world)}.")
    of = found.get(world, {})
    lost = [rank for rank in range(world) if rank not in of] if world <= 10**6 else [0]
    if lost:
        raise TensorError(
            "The checkpoint is not complete",
            where=str(folder),
            why=f"It is of {world} ranks, and the files of {len(lost)} are missing, such as "
            f"model_world_size_{world}_rank_{lost[0]}.pt.",
            hint="Each node writes those of its own ranks: copy them together, or choose another step.",
        )
    return [of[rank] for rank in range(world)]


def _read_rank(path: Path, files: OpenFiles) -> _Rank:
    saved = SavedFile(files, path)
    content = saved.content
    if not isinstance(content, dict):
        raise _invalid(path, "It has no tensors by name.")
    tensors: dict[str, SavedTensor | ShardedValue] = {}
    objects: list[str] = []
    odd = odd_name(content)
    if odd is not None:
        raise _invalid(path, f"It names a tensor {odd}.")
    for name, value in content.items():
        tensor = _tensor(saved, value)
        if tensor is None:
            objects.append(name)
        else:
            tensors[name] = tensor
    if not tensors:
        raise _invalid(path, "It has no tensors.")
    return _Rank(path, tensors, tuple(objects))


def _tensor(saved: SavedFile, value: Any) -> SavedTensor | ShardedValue | None:
    """Return a tensor of a rank's file; None of anything else.

    A DTensor, or another subclass, is `_rebuild_from_type_v2(function, class, arguments, state)` (torch/_tensor.py).
    """
    if not is_made(value, "_rebuild_from_type_v2") or len(value.args) != 4:
        return saved.tensor(value)
    function, _, arguments, state = value.args
    name = function.name.rpartition(".")[2] if is_class(function) else ""
    if name == "_rebuild_tensor_v2":
        return saved.rebuilt(arguments)
    if name != "_rebuild_wrapper_subclass" or not isinstance(arguments, tuple) or len(arguments) < 3:
        return None
    dtype, shape = dtype_of(arguments[1]), arguments[2]
    return ShardedValue(dtype, tuple(shape), saved, state) if dtype and is_shape(shape) else None


def fsdp_digest(folder: Path, files: OpenFiles) -> str:
    """Return a digest of the rank files' names, sizes and last bytes."""
    sums = hashlib.sha256()
    for path in _rank_files(folder):
        size = files.size(path)
        sums.update(f"{path.name} {size}\n".encode())
        start = max(0, size - _SAMPLE)
        sums.update(files.read(path, start, size - start))
    return sums.hexdigest()


# -- the ranks' parts together -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    box: Box
    tensor: SavedTensor
    path: Path


def _assembled(
    name: str, ranks: list[tuple[Path, SavedTensor | ShardedValue]], files: OpenFiles
) -> list[TensorView]:
    """Assemble a tensor from the ranks. Returns one view for each copy."""
    path, first = ranks[0]
    for other, value in ranks[1:]:
        if (type(value), value.shape, value.dtype) != (type(first), first.shape, first.dtype) and (
            isinstance(first, ShardedValue) or isinstance(value, ShardedValue) or value.dtype != first.dtype
        ):
            raise _invalid(
                other,
                f"{name} is {_described(value)}, and {_described(first)} in {path.name}.",
            )
        if value.shape != first.shape:
            raise _invalid(
                other,
                f"{name} is {list(value.shape)}, and {list(first.shape)} in {path.name}, without a placement.",
            )
    parts = _parts(name, ranks)
    by_box: dict[Box, list[_Part]] = {}
    for part in parts:
        if 0 not in extent(part.box):
            by_box.setdefault(part.box, []).append(part)
    if not by_box:  # a tensor without values
        by_box[parts[0].box] = [parts[0]]
    holders = {len(of) for of in by_box.values()}
    boxes = list(by_box)
    if len(holders) != 1 or not _covers(boxes, first.shape):
        raise _invalid(path.parent, f"The ranks' parts of {name} don't cover its shape {list(first.shape)}.")
    return [
        _view(name, first.shape, first.dtype, [by_box[box][copy] for box in boxes], files)
        for copy in range(holders.pop())
    ]


def _described(value: SavedTensor | ShardedValue) -> str:
    kind = "a part of" if isinstance(value, ShardedValue) else "a plain tensor,"
    return f"{kind} {list(value.shape)} in {str(value.dtype).removeprefix('torch.')}"


def _parts(name: str, ranks: list[tuple[Path, SavedTensor | ShardedValue]]) -> list[_Part]:
    plain = [(path, value) for path, value in ranks if isinstance(value, SavedTensor)]
    if plain:
        return [_Part(whole(value.shape), value, path) for path, value in plain]
    sharded = [(path, value) for path, value in ranks if isinstance(value, ShardedValue)]
    if sharded[0][1].attribute("_spec") is not None:
        return _mesh_parts(name, sharded)
    return [part for path, value in sharded for part in _explicit_parts(name, path, value)]


def _explicit_parts(name: str, path: Path, value: ShardedValue) -> list[_Part]:
    """Return the parts of a ShardedTensor with their offsets."""
    shards = value.state[0] if isinstance(value.state, tuple) and value.state else None
    if not isinstance(shards, list):
        raise _invalid(path, f"{name} has no local shards.")
    parts: list[_Part] = []
    for shard in shards:
        inside = is_made(shard, "Shard") and shard.get("metadata")
        tensor = value.saved.tensor(shard.get("tensor")) if inside else None
        of = inside if is_made(inside, "ShardMetadata") else Inert()
        origin, shape = of.get("shard_offsets"), of.get("shard_sizes")
        if not (
            isinstance(tensor, SavedTensor)
            and is_shape(origin)
            and is_shape(shape)
            and len(origin) == len(shape) == len(value.shape)
        ):
            raise _invalid(path, f"A shard of {name} has no tensor, or no offset and size.")
        box = tuple((at, at + size) for at, size in zip(origin, shape, strict=True))
        parts.append(_checked(name, _Part(box, tensor, path), value))
    return parts


def _mesh_parts(name: str, ranks: list[tuple[Path, ShardedValue]]) -> list[_Part]:
    """Return the parts of a DTensor, from its placements and each rank's mesh coordinates."""
    described = [_dtensor(name, rank, path, value) for rank, (path, value) in enumerate(ranks)]
    placements = described[0][2]
    for (path, _), (_, coordinates, own) in zip(ranks, described, strict=True):
        if own != placements or len(coordinates) != len(placements):
            raise _invalid(path, f"The placements of {name} differ from those in rank 0's file.")
    sizes = [1 + max(axes) for axes in zip(*(coordinates for _, coordinates, _ in described), strict=True)]
    parts: list[_Part] = []
    for (path, value), (tensor, coordinates, _) in zip(ranks, described, strict=True):
        box = list(whole(value.shape))
        for axis, coordinate, size in zip(placements, coordinates, sizes, strict=True):
            if axis is not None:
                if axis >= len(box):
                    raise _invalid(path, f"{name} is divided along axis {axis}, of {len(box)}.")
                box[axis] = _chunk(box[axis], coordinate, size)
        parts.append(_checked(name, _Part(tuple(box), tensor, path), value))
    return parts


def _dtensor(
    name: str, rank: int, path: Path, value: ShardedValue
) -> tuple[SavedTensor, tuple[int, ...], tuple[int | None, ...]]:
    """Return a rank's local tensor and mesh coordinates, and the tensor axis that each mesh axis divides."""
    tensor, spec = value.saved.tensor(value.attribute("_local_tensor")), value.attribute("_spec")
    if tensor is None or not isinstance(spec, Inert):
        raise _invalid(path, f"{name} has no local tensor, or no placements.")
    mesh, found = spec.get("mesh"), spec.get("placements")
    placements: list[int | None] = []
    for placement in found if isinstance(found, (tuple, list)) else ():
        axis = placement.get("dim") if is_made(placement, "Shard") else None
        if not (is_made(placement, "Replicate") or (type(axis) is int and axis >= 0)):
            raise TensorError(
                "Unsupported placement of a tensor",
                where=f"{path}: {name}",
                why="It is neither Shard(axis) nor Replicate(): FSDP with tensor parallelism is not supported.",
            )
        placements.append(axis)
    coordinates = mesh.get("_coordinate_on_dim") if is_made(mesh, "DeviceMesh") else None
    if coordinates is None and len(placements) == 1:
        coordinates = (rank,)
    if not placements or not is_shape(coordinates):
        raise _invalid(path, f"{name} has no placements, or its mesh doesn't contain the rank.")
    return tensor, tuple(coordinates), tuple(placements)


def _chunk(span: tuple[int, int], index: int, count: int) -> tuple[int, int]:
    """Return a rank's part of an axis, divided as by torch.chunk: the last parts may be smaller or empty."""
    start, stop = span
    size = -(-(stop - start) // count)
    return min(start + index * size, stop), min(start + (index + 1) * size, stop)


def _checked(name: str, part: _Part, value: ShardedValue) -> _Part:
    tensor = part.tensor
    if tensor.dtype != value.dtype or (
        tensor.shape != extent(part.box) and not (0 in extent(part.box) and math.prod(tensor.shape) == 0)
    ):
        raise _invalid(
            part.path,
            f"Its part of {name} is {list(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}; by the "
            f"placement it is {list(extent(part.box))} in {str(value.dtype).removeprefix('torch.')}.",
        )
    return part


def _covers(boxes: list[Box], shape: tuple[int, ...]) -> bool:
    inside = all(
        len(box) == len(shape) and all(stop <= size for (_, stop), size in zip(box, shape, strict=True))
        for box in boxes
    )
    if not inside or sum(math.prod(extent(box)) for box in boxes) != math.prod(shape):
        return False
    return not any_overlap(boxes)


def _view(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, parts: list[_Part], files: OpenFiles
) -> TensorView:
    if len(parts) == 1:
        return parts[0].tensor.view(files, name)
    held = [(part.box, part.tensor.view(files, name).read) for part in parts]
    return TensorView(name, shape, dtype, f"{parts[0].path} and others", partial(read_assembled, held, dtype))


def _invalid(path: Path, why: str) -> TensorError:
    return TensorError("Invalid FSDP checkpoint", where=str(path), why=why, hint=_AGAIN)
