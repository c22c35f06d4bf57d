"""Worker tasks that export a run's checkpoint: unchanged tensors in safetensors shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .checkpoint_views import CheckpointViews, checkpoint_format, open_checkpoint
from .conversion.units import OutputFile, check_names, hf_shards
from .conversion.write_checkpoint import write_hf_file, write_index
from .formats.tensor_views import OpenFiles
from .hf_checkpoint import CONFIG, read_object
from .layouts.model_sizes import model_sizes
from .layouts.placements import dist_layout
from .tensor_error import TensorError

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Export:
    source: CheckpointViews
    units: list[OutputFile]
    dtypes: dict[str, torch.dtype]


def plan_export(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Return the shards to write.

    Args:
        arguments: `input`; `config`, the folder of the model's config.json; `experts_over_tensor`, of a legacy input.
    """
    found = opened(_key(arguments))
    by_dtype: dict[str, int] = {}
    for name, dtype in found.dtypes.items():
        word = str(dtype).removeprefix("torch.")
        by_dtype[word] = by_dtype.get(word, 0) + found.source.tensors[name].numel
    return {
        "input": found.source.describe(),
        "files": {unit.file: unit.bytes for unit in found.units},
        "tensors": len(found.dtypes),
        "values": dict(sorted(by_dtype.items())),
    }


def export_shard(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Write one shard.

    Args:
        arguments: Those of `plan_export`; `output`, a folder; `shard`; `metadata`, of the safetensors header.
        progress: Called with the number of bytes written.
    """
    found = opened(_key(arguments))
    unit = next(unit for unit in found.units if unit.file == arguments["shard"])
    path = Path(arguments["output"], unit.file)
    write_hf_file(path, unit, found.source.tensors, found.dtypes, progress, arguments["metadata"])
    return {"shard": unit.file}


def finish_export(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Write the index. Arguments: those of `plan_export`; `output`, a folder."""
    found = opened(_key(arguments))
    write_index(Path(arguments["output"]), found.units, sum(unit.bytes for unit in found.units))
    return {}


def _key(arguments: Mapping[str, Any]) -> tuple[str, str, bool]:
    return arguments["input"], arguments["config"], arguments["experts_over_tensor"]


@lru_cache(maxsize=1)
def opened(key: tuple[str, str, bool]) -> _Export:
    """Open an export. A worker caches the last one."""
    folder, config, experts_over_tensor = key
    path = Path(config) / CONFIG
    content = read_object(path)
    source = open_checkpoint(Path(folder), content, str(path), experts_over_tensor, OpenFiles())
    if checkpoint_format(Path(folder)) in ("torch_dist", "legacy"):
        model = model_sizes(content, str(path))
        check_names(source.tensors, source.mtp, source.unknown, model, dist_layout(model), folder)
    adapters = [name for name in source.tensors if ".lora_" in name or name.startswith("base_model.model.")]
    if adapters:
        raise TensorError(
            "The checkpoint has unmerged adapters",
            where=folder,
            why=f"{len(adapters)} tensors belong to PEFT adapters, such as {adapters[0]}.",
            hint="Merge them with PEFT's merge_and_unload first; an export contains only the model's own tensors.",
        )
    for name, view in source.tensors.items():
        if view.dtype not in _FLOATS:
            raise TensorError("Unsupported dtype", where=f"{view.where}: {name}", why=f"It is {view.dtype}.")
    sizes = {name: view.bytes for name, view in source.tensors.items()}
    return _Export(
        source, list(hf_shards(sizes, sizes)), {name: view.dtype for name, view in source.tensors.items()}
    )
