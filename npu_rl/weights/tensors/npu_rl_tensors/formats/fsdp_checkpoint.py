"""verl's FSDP checkpoints: one `model_world_size_W_rank_R.pt` per rank, with Hugging Face tensor names.

`FSDPCheckpointManager.save_checkpoint` (verl/utils/checkpoint/fsdp_checkpoint_manager.py@v0.5.0) saves what
`state_dict()` gives with SHARDED_STATE_DICT and the device mesh that verl passes: DTensors, and plain tensors for
buffers and on a single rank. Each is rebuilt here from the local tensor and the placements beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hf_checkpoint import read_object
from ..tensor_error import TensorError
from ..untrusted_values import is_shape, odd_name, shown
from .boxes import Box, covers, extent, whole
from .inert_pickle import Inert, attribute_of, is_made
from .tensor_views import OpenFiles, TensorView, TensorViews, assembled, sampled_digest
from .torch_files import SavedFile, SavedTensor, is_class

CONFIG = "fsdp_config.json"
_FILE = re.compile(r"model_world_size_([1-9]\d{0,5})_rank_(0|[1-9]\d{0,5})\.pt")
_AGAIN = "Copy it again from where it was written, or choose another step."


def is_fsdp_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like an FSDP checkpoint."""
    return (folder / CONFIG).is_file() or any(folder.glob("model_world_size_*_rank_*.pt"))


def read_fsdp_checkpoint(folder: Path, files: OpenFiles) -> TensorViews:
    """Open a checkpoint without reading tensors.

    Raises:
        TensorError: If a rank's file is missing, was cut off or names code, or the ranks don't fit together.
    """
    ranks = [_read_rank(rank, path, files) for rank, path in enumerate(_rank_files(folder))]
    for rank in ranks[1:]:
        odd = sorted(rank.parts.keys() ^ ranks[0].parts.keys())
        if odd:
            raise _invalid(rank.path, f"Only one of it and {ranks[0].path.name} has {odd[0]}.")
    tensors: dict[str, TensorView] = {}
    copies: dict[str, list[TensorView]] = {}
    for name in ranks[0].parts:
        tensors[name], *further = _assembled(name, [rank.parts[name] for rank in ranks], files)
        if further:
            copies[name] = further
    return TensorViews(tensors, copies, objects=ranks[0].objects)


@dataclass(frozen=True)
class _Part:
    """A rank's part of a tensor.

    Attributes:
        shape: Of the whole tensor.
        local: The part in the file.
        axes: The tensor's axis that each axis of the mesh divides, or None; empty for a plain tensor.
        coordinates: The rank's, in the mesh.
    """

    path: Path
    shape: tuple[int, ...]
    local: SavedTensor
    axes: tuple[int | None, ...] = ()
    coordinates: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = "a part of" if self.axes else "a plain tensor,"
        return f"{kind} {list(self.shape)} in {str(self.local.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class _Rank:
    path: Path
    parts: dict[str, _Part]
    objects: tuple[str, ...]


def _read_rank(rank: int, path: Path, files: OpenFiles) -> _Rank:
    saved = SavedFile(files, path)
    if not isinstance(saved.content, dict):
        raise _invalid(path, "It has no tensors by name.")
    odd = odd_name(saved.content)
    if odd is not None:
        raise _invalid(path, f"It names a tensor {odd}.")
    found = {name: _part(name, rank, saved, value, path) for name, value in saved.content.items()}
    parts = {name: part for name, part in found.items() if part is not None}
    if not parts:
        raise _invalid(path, "It has no tensors.")
    return _Rank(path, parts, tuple(name for name in found if name not in parts))


def _part(name: str, rank: int, saved: SavedFile, value: Any, path: Path) -> _Part | None:
    """Return a tensor of a rank's file; None of anything else.

    A DTensor, or another subclass, is `_rebuild_from_type_v2(function, class, arguments, state)` (torch/_tensor.py).
    """
    plain, name_of = saved.tensor(value), ""
    if is_made(value, "_rebuild_from_type_v2") and len(value.args) == 4:
        function, _, arguments, state = value.args
        name_of = function.name.rpartition(".")[2] if is_class(function) else ""
        plain = saved.rebuilt(arguments) if name_of == "_rebuild_tensor_v2" else None
    if plain is not None:
        return _Part(path, plain.shape, plain)
    if name_of != "_rebuild_wrapper_subclass":
        return None
    local, spec = saved.tensor(attribute_of(state, "_local_tensor")), attribute_of(state, "_spec")
    if not (isinstance(arguments, tuple) and len(arguments) > 2 and is_shape(arguments[2])):
        raise _invalid(path, f"{name} has no shape.")
    if local is None or not isinstance(spec, Inert):
        raise _invalid(path, f"{name} has no local tensor, or no placements.")
    axes = _axes(spec.get("placements"), f"{path}: {name}")
    mesh = spec.get("mesh")
    at = mesh.get("_coordinate_on_dim") if is_made(mesh, "DeviceMesh") else None
    if at is None and len(axes) == 1:
        at = (rank,)
    shape = tuple(arguments[2])
    if (
        not axes
        or not is_shape(at)
        or len(at) != len(axes)
        or max(a or 0 for a in axes) >= max(len(shape), 1)
    ):
        raise _invalid(path, f"{name} has no placements on its axes, or its mesh doesn't contain the rank.")
    return _Part(path, shape, local, axes, tuple(at))


def _axes(placements: Any, where: str) -> tuple[int | None, ...]:
    """Return the tensor's axis that each placement divides; None of `Replicate()`."""
    axes: list[int | None] = []
    for placement in placements if isinstance(placements, (tuple, list)) else ():
        axis = placement.get("dim") if is_made(placement, "Shard") else None
        if not (is_made(placement, "Replicate") or (type(axis) is int and axis >= 0)):
            raise TensorError(
                "Unsupported placement of a tensor",
                where=where,
                why="It is neither Shard(axis) nor Replicate(): FSDP with tensor parallelism is not supported.",
            )
        axes.append(axis)
    return tuple(axes)


def _rank_files(folder: Path) -> list[Path]:
    found: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            found.setdefault(int(match[1]), {})[int(match[2])] = path
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


def fsdp_digest(folder: Path, files: OpenFiles) -> str:
    """Return a digest of the rank files."""
    return sampled_digest(_rank_files(folder), files)


def _assembled(name: str, parts: list[_Part], files: OpenFiles) -> list[TensorView]:
    """Assemble a tensor from the ranks' parts. Returns one view for each copy."""
    first = parts[0]
    for part in parts[1:]:
        if (str(part), part.axes) != (str(first), first.axes):
            raise _invalid(
                part.path, f"{name} is {part}, and {first} in {first.path.name}, or placed otherwise."
            )
    sizes = [1 + max(of) for of in zip(*(part.coordinates for part in parts), strict=True)]
    by_box: dict[Box, list[_Part]] = {}
    for part in parts:
        box = list(whole(part.shape))
        for axis, coordinate, size in zip(part.axes, part.coordinates, sizes, strict=True):
            if axis is not None:
                box[axis] = _chunk(box[axis], coordinate, size)
        expected = extent(tuple(box))
        if part.local.shape != expected and not (0 in expected and 0 in part.local.shape):
            raise _invalid(
                part.path,
                f"Its part of {name} is {list(part.local.shape)}; by the placement it is {list(expected)}.",
            )
        if 0 not in expected or 0 in part.shape:
            by_box.setdefault(tuple(box), []).append(part)
    boxes = [box for box in by_box if 0 not in extent(box)]
    holders = {len(of) for of in by_box.values()}
    if len(holders) != 1 or not covers(boxes, first.shape):
        why = f"The ranks' parts of {name} don't cover its shape {list(first.shape)}."
        raise _invalid(first.path.parent, why)
    return [
        assembled(name, first.shape, [(box, of[copy].local.view(files, name)) for box, of in by_box.items()])
        for copy in range(holders.pop())
    ]


def _chunk(span: tuple[int, int], index: int, count: int) -> tuple[int, int]:
    """Return a rank's part of an axis, divided as by torch.chunk: the last parts may be smaller or empty."""
    start, stop = span
    size = -(-(stop - start) // count)
    return min(start + index * size, stop), min(start + (index + 1) * size, stop)


def _invalid(path: Path, why: str) -> TensorError:
    return TensorError("Invalid FSDP checkpoint", where=str(path), why=why, hint=_AGAIN)
