"""Write one file of a conversion."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..formats.boxes import Box, extent, origin, shifted, slices, whole
from ..formats.hf_views import WORDS
from ..formats.tensor_views import TensorView
from ..hf_checkpoint import CONFIG, INDEX
from ..layouts.mapped_checkpoint import box_in_stored
from ..layouts.placements import TensorMap
from ..not_finite import require_finite
from ..part_file import PLACES, new_file, write_file, write_json
from ..safetensors_file import header_bytes
from .units import OutputFile

Progress = Callable[[int], None]
Dtypes = Mapping[str, torch.dtype]

LAST = {
    "torch_dist": [".metadata", "common.pt", "metadata.json"],
    "legacy": ["latest_checkpointed_iteration.txt"],
    "hf": [CONFIG, INDEX],
}
"""Files that make the others a checkpoint, by format: written last."""


def write_dist_file(
    path: Path, unit: OutputFile, views: Mapping[str, TensorView], dtypes: Dtypes, progress: Progress
) -> None:
    """Write chunks with torch.save, and a list of their offsets beside the file."""
    places = []
    with new_file(path) as out:
        for chunk in unit.chunks:
            placement = chunk.placement
            data = _read(views[placement.name], chunk.hf_box, dtypes[placement.name])
            at = box_in_stored(placement, shifted(chunk.hf_box, origin(placement.hf_box), -1))
            start = out.tell()
            torch.save(data.reshape(extent(at)), out)
            places.append([placement.stored_key, list(at), start, out.tell() - start])
            progress(data.numel() * data.element_size())
        write_json(path.with_name(path.name + PLACES), places)


def write_rank_file(
    path: Path,
    unit: OutputFile,
    layout: TensorMap,
    views: Mapping[str, TensorView],
    dtypes: Dtypes,
    progress: Progress,
) -> None:
    """Write a rank's file for Megatron's legacy loader, with tensors under "model"."""
    fill = layout.by_stored()
    model: dict[str, torch.Tensor] = {}
    for key in unit.stored:
        spec, placements = layout.stored[key], fill[key]
        target = torch.empty(spec.view, dtype=dtypes[placements[0].name])
        for placement in placements:
            data = _read(views[placement.name], placement.hf_box, target.dtype)
            data = data.transpose(-1, -2) if placement.transposed else data
            target[slices(placement.stored_box)] = data.reshape(extent(placement.stored_box))
            progress(data.numel() * data.element_size())
        model[key.partition("/")[2]] = target.view(spec.shape)
    with new_file(path) as out:
        torch.save({"model": model, "checkpoint_version": 3.0, "iteration": 1}, out)


def write_hf_file(
    path: Path,
    unit: OutputFile,
    views: Mapping[str, TensorView],
    piece: int,
    progress: Progress,
    metadata: Mapping[str, str],
) -> None:
    """Write a shard piece by piece. `metadata`: more entries for the header's."""
    tensors = [(name, WORDS[views[name].dtype], views[name].shape) for name in unit.names]
    with new_file(path) as out:
        # transformers refuses a file without a format
        out.write(header_bytes(tensors, {"format": "pt", **metadata}))
        for name in unit.names:
            for box in views[name].pieces(piece):
                data = _read(views[name], box, views[name].dtype)
                out.write(memoryview(data.reshape(-1).view(torch.uint8).numpy()))
                progress(data.numel() * data.element_size())


def write_dist_metadata(
    folder: Path, files: list[str], layout: TensorMap, dtypes: Dtypes, states: list[tuple[str, Any, Any]]
) -> None:
    """Write the files that complete a Megatron-core `torch_dist` checkpoint, metadata.json last.

    The steps of `dist_checkpointing.save`@core_v0.12.1: `.metadata` of torch, `common.pt` of what is no tensor
    (nothing), and the format's name.
    """
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    by_key = {one.stored_key: dtypes[name] for name, placed in layout.by_name.items() for one in placed}
    described: dict[str, Any] = {
        key: dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=by_key[key]), torch.Size(spec.shape), [])
        for key, spec in layout.stored.items()
    }
    storage: dict[Any, Any] = {}
    for file in files:
        for key, at, start, length in json.loads((folder / (file + PLACES)).read_bytes()):
            offsets, sizes = torch.Size(a for a, _ in at), torch.Size(b - a for a, b in at)
            described[key].chunks.append(dcp.ChunkStorageMetadata(offsets, sizes))
            storage[dcp.MetadataIndex(key, offsets)] = _StorageInfo(file, start, length)
    states_file = states_file_of(len(files))
    for key, start, length in _write_states(folder / states_file, states):
        described[key] = dcp.BytesStorageMetadata()
        storage[dcp.MetadataIndex(key)] = _StorageInfo(states_file, start, length)
    metadata = dcp.Metadata(described, None, storage)
    metadata.mcore_data = {key: {} for key in layout.stored}
    write_file(folder / ".metadata", pickle.dumps(metadata))
    common = io.BytesIO()
    torch.save({}, common)
    write_file(folder / "common.pt", common.getvalue())
    backends = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    write_json(folder / "metadata.json", {**backends, "common_backend": "torch", "common_backend_version": 1})


def states_file_of(count: int) -> str:
    """Return the name of the torch_dist file with empty objects, which follows `count` tensor files."""
    return f"__{count}_0.distcp"


def remove_places(folder: Path, files: list[str]) -> None:
    """Remove the lists of offsets, whose content is in .metadata."""
    for file in files:
        (folder / (file + PLACES)).unlink(missing_ok=True)


def _write_states(path: Path, states: list[tuple[str, Any, Any]]) -> list[tuple[str, int, int]]:
    """Write empty objects, named by index and shape as in ShardedObject.unique_key@core_v0.12.1.

    The content is a list of one: `_mcore_to_torch_sharded_object` in dist_checkpointing/strategies/torch.py saves what
    all ShardedObjects of a key hold, and `load` fails with "object of type 'NoneType' has no len()" for a bare None.
    """
    empty = io.BytesIO()
    torch.save([None], empty)
    content = empty.getvalue()
    found = []
    with new_file(path) as out:
        for key, index, shape in states:
            name = f"{key}/shard_{'.'.join(map(str, index))}_{'.'.join(map(str, shape))}"
            found.append((name, out.tell(), len(content)))
            out.write(content)
    return found


def write_index(folder: Path, files: Sequence[OutputFile]) -> None:
    """Write a Hugging Face checkpoint's index."""
    weight_map = dict(sorted((name, unit.file) for unit in files for name in unit.names))
    total = sum(unit.bytes for unit in files)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _read(view: TensorView, box: Box, dtype: torch.dtype) -> torch.Tensor:
    """Return a box as a tensor that owns just its values, since torch.save writes the whole storage.

    Raises:
        TensorError: If a value is NaN or infinite, or becomes so in the dtype.
    """
    data = view.read(box if box else whole(view.shape)).to(dtype).contiguous()
    require_finite(view, data)
    return data if data.untyped_storage().nbytes() == data.numel() * data.element_size() else data.clone()
