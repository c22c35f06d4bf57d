"""Worker tasks of a conversion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..checkpoint_views import CheckpointViews, checkpoint_format, open_checkpoint
from ..formats.tensor_views import OpenFiles
from ..hf_checkpoint import CONFIG, HEAD, read_object
from ..layouts.model_sizes import ModelDims, model_sizes
from ..layouts.placements import TensorMap
from ..tensor_error import TensorError
from ..tied_head import head_difference
from . import write_checkpoint
from .units import OutputFile, OutputLayout, check_names, extra_states, units


@dataclass(frozen=True)
class _Conversion:
    source: CheckpointViews
    model: ModelDims
    output: OutputLayout
    layout: TensorMap
    units: list[OutputFile]
    dtypes: dict[str, torch.dtype]


def plan_conversion(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Return the files to write, and the tensors that are left out.

    Args:
        arguments: `input`; `config`, the folder of the model's config.json, or None; `layout`, of `OutputLayout`;
            `experts_over_tensor`, of a legacy input.
    """
    found = opened(_key(arguments))
    left_out = found.model.tie_word_embeddings and HEAD in found.source.tensors
    if left_out:
        _require_tied(found.source)
    states = (
        [write_checkpoint.states_file_of(len(found.units))] if found.output.format == "torch_dist" else []
    )
    described = json.dumps([found.source.digest, found.output.to_json(), vars(found.model)]).encode()
    return {
        "digest": hashlib.sha256(described).hexdigest(),
        "input": found.source.describe(),
        "files": {unit.file: unit.bytes for unit in found.units},
        "last": [*states, *write_checkpoint.LAST[found.output.format]],
        "largest": max(unit.largest for unit in found.units),
        "tensors": len(found.layout.by_name),
        "stored": len(found.layout.stored),
        "mtp_left_out": sorted(found.source.mtp),
        "tied_left_out": [HEAD] if left_out else [],
        "rounded": sorted(
            name
            for name, dtype in found.dtypes.items()
            if torch.promote_types(found.source.tensors[name].dtype, dtype) != dtype
        ),
    }


def convert_file(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Write one file. The file gets its name once it is complete and on disk.

    Args:
        arguments: As of `plan_conversion`; `output`, a folder; `file`.
        progress: Called with the number of bytes written.
    """
    found = opened(_key(arguments))
    unit = next(unit for unit in found.units if unit.file == arguments["file"])
    target = Path(arguments["output"], unit.file)
    target.parent.mkdir(parents=True, exist_ok=True)
    views, dtypes = found.source.tensors, found.dtypes
    if found.output.format == "torch_dist":
        write_checkpoint.write_dist_file(target, unit, views, dtypes, progress)
    elif found.output.format == "legacy":
        write_checkpoint.write_rank_file(target, unit, found.layout, views, dtypes, progress)
    else:
        write_checkpoint.write_hf_file(target, unit, views, dtypes, progress)
    return {"shard": unit.file}


def finish_conversion(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Write the files that complete a checkpoint. Arguments: those of `plan_conversion`; `output`, a folder."""
    found, folder = opened(_key(arguments)), Path(arguments["output"])
    if found.output.format == "torch_dist":
        files = [unit.file for unit in found.units]
        last = write_checkpoint.LAST["torch_dist"]
        if not all((folder / name).is_file() for name in last):  # else a kill came after them
            write_checkpoint.write_dist_metadata(
                folder, files, found.layout, found.dtypes, list(extra_states(found.model))
            )
        write_checkpoint.remove_places(folder, files)
    elif found.output.format == "legacy":
        write_checkpoint.write_tracker(folder)
    else:
        write_checkpoint.write_index(folder, found.units, sum(unit.bytes for unit in found.units))
    return {}


def _key(arguments: Mapping[str, Any]) -> tuple[str, str | None, str, bool]:
    layout = json.dumps(arguments["layout"], sort_keys=True)
    return arguments["input"], arguments["config"], layout, arguments["experts_over_tensor"]


@lru_cache(maxsize=1)
def opened(key: tuple[str, str | None, str, bool]) -> _Conversion:
    """Open a conversion. A worker caches the last one."""
    folder, config, layout, experts_over_tensor = key
    source = Path(folder)
    model_folder = Path(config) if config else source if checkpoint_format(source) == "hf" else None
    content = None if model_folder is None else read_object(model_folder / CONFIG)
    where = "" if model_folder is None else str(model_folder / CONFIG)
    views = open_checkpoint(source, content, where, experts_over_tensor, OpenFiles())
    assert content is not None  # open_checkpoint has raised
    model = model_sizes(content, where)
    output = OutputLayout.parse(json.loads(layout))
    placed = output.placements(model)
    check_names(views.tensors, views.mtp, views.unknown, model, placed, folder)
    _check_shapes(views, placed)
    dtypes = _dtypes(views, placed, output)
    sizes = {name: dtype.itemsize for name, dtype in dtypes.items()}
    return _Conversion(views, model, output, placed, units(output, placed, sizes), dtypes)


def _require_tied(views: CheckpointViews) -> None:
    """Raise TensorError if the output head, which isn't written, differs from the embeddings."""
    difference = head_difference(views.tensors, lambda _count: None)
    if difference:
        raise TensorError(
            "The output head differs from the embeddings that config.json ties it to",
            where=f"{views.tensors[HEAD].where}: {HEAD}",
            why=f"tie_word_embeddings is true, and {difference}.",
            hint="If the head is the model's, set tie_word_embeddings to false in config.json; else remove the tensor.",
        )


def _check_shapes(views: CheckpointViews, layout: TensorMap) -> None:
    for name in layout.by_name:
        view, expected = views.tensors[name], layout.shape(name)
        if view.shape != expected:
            raise TensorError(
                "A tensor's shape differs from the model's",
                where=f"{view.where}: {name}",
                why=f"It is {list(view.shape)}; by the model's config.json it is {list(expected)}.",
            )
        if view.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise TensorError("Unsupported dtype", where=f"{view.where}: {name}", why=f"It is {view.dtype}.")


def _dtypes(views: CheckpointViews, layout: TensorMap, output: OutputLayout) -> dict[str, torch.dtype]:
    """Return the output dtypes: bfloat16 (float32 for the router's bias); unchanged in Hugging Face's format."""
    if output.format == "hf":
        return {name: views.tensors[name].dtype for name in layout.by_name}
    return {
        name: torch.float32 if layout.stored[placements[0].stored_key].precise else torch.bfloat16
        for name, placements in layout.by_name.items()
    }
