"""Worker tasks that write a checkpoint: those of a cast, a conversion and an export."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..audit import head_difference
from ..cast_plan import SCALE_SUFFIX, cast_config, is_beyond
from ..checkpoint_views import CheckpointViews, checkpoint_format, open_checkpoint, open_hf, unknown_model
from ..formats.legacy_checkpoint import TRACKER
from ..formats.tensor_views import OpenFiles
from ..hf_checkpoint import CONFIG, HEAD, INDEX, HfCheckpoint, read_object
from ..layouts.model_sizes import ModelDims, model_sizes
from ..layouts.placements import TensorMap, dist_layout
from ..part_file import write_file, write_json
from ..tensor_error import TensorError
from . import write_checkpoint
from .units import CHUNK, OutputFile, OutputLayout, check_names, extra_states, hf_shards, units

_CAST_PIECE = 4 * 1024 * 1024  # values: what is between the steps stays small, and a cast needs little memory
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class _Output:
    """An output that is to be written.

    Attributes:
        format: Of the output.
        config: The input's config.json.
        dtypes: Of the output's tensors, by Hugging Face name.
        described: What a report has about it.
        piece: Values of Hugging Face's format that are read and written at once.
        layout, model: Only of Megatron's formats.
        index: Whether Hugging Face's format needs its index.
    """

    source: CheckpointViews
    format: str
    config: dict[str, Any]
    files: list[OutputFile]
    dtypes: dict[str, torch.dtype]
    described: dict[str, Any]
    piece: int = CHUNK
    layout: TensorMap | None = None
    model: ModelDims | None = None
    index: bool = True


def plan_output(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Return the files to write, and the report on them.

    Args:
        arguments: `of`: `command` (cast, convert or export); `input`; `config`, the folder of the model's config.json,
            or None; `layout`, of `OutputLayout`; `experts_over_tensor`, of a legacy input; `device`, of a cast.
    """
    found = opened(json.dumps(arguments["of"]))
    last = list(write_checkpoint.LAST[found.format])
    if found.format == "torch_dist":
        last.insert(0, write_checkpoint.states_file_of(len(found.files)))
    elif not found.index:
        last = [CONFIG]
    read_by = ("experts_over_tensor",) if found.source.format == "legacy" else ()
    of = {name: arguments["of"][name] for name in ("command", "layout", *read_by)}
    digest = json.dumps([found.source.digest, of, found.config], sort_keys=True).encode()
    return {
        "digest": hashlib.sha256(digest).hexdigest(),
        "files": {unit.file: unit.bytes for unit in found.files},
        "last": last,
        "report": {"input": found.source.describe(), **found.described},
    }


def write_output(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Write one file. The file gets its name once it is complete and on disk.

    Args:
        arguments: As of `plan_output`; `output`, a folder; `file`; `metadata`, of a safetensors header.
        progress: Called with the number of bytes written.
    """
    found = opened(json.dumps(arguments["of"]))
    unit = next(unit for unit in found.files if unit.file == arguments["file"])
    target = Path(arguments["output"], unit.file)
    target.parent.mkdir(parents=True, exist_ok=True)
    views, dtypes = found.source.tensors, found.dtypes
    if found.format == "torch_dist":
        write_checkpoint.write_dist_file(target, unit, views, dtypes, progress)
    elif found.layout is not None:
        write_checkpoint.write_rank_file(target, unit, found.layout, views, dtypes, progress)
    else:
        metadata = {**unit.metadata, **arguments.get("metadata", {})}
        write_checkpoint.write_hf_file(target, unit, views, found.piece, progress, metadata)
    return {"shard": unit.file}


def finish_output(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Write the files that complete a checkpoint. Arguments: those of `plan_output`; `output`, a folder."""
    found, folder = opened(json.dumps(arguments["of"])), Path(arguments["output"])
    if found.layout is None:
        write_json(folder / CONFIG, cast_config(found.config)[0])
        if found.index:
            write_checkpoint.write_index(folder, found.files)
    elif found.format == "torch_dist":
        assert found.model is not None
        files, states = [unit.file for unit in found.files], list(extra_states(found.model))
        if not all((folder / name).is_file() for name in write_checkpoint.LAST["torch_dist"]):
            write_checkpoint.write_dist_metadata(folder, files, found.layout, found.dtypes, states)
        write_checkpoint.remove_places(folder, files)  # else a kill came after them
    else:
        write_file(folder / TRACKER, b"1")
    return {}


@lru_cache(maxsize=1)
def opened(of: str) -> _Output:
    """Open the input, and plan the output. A worker caches the last one."""
    asked = json.loads(of)
    folder, files = Path(asked["input"]), OpenFiles()
    if asked["command"] == "cast":
        return _cast(HfCheckpoint(folder), asked["device"], files)
    at = Path(asked["config"] or folder) / CONFIG
    config = read_object(at) if asked["config"] or checkpoint_format(folder) == "hf" else None
    source = open_checkpoint(folder, config, str(at), asked["experts_over_tensor"], files)
    if config is None:
        raise unknown_model(folder)
    if asked["command"] == "export":
        return _export(source, config, str(at))
    return _convert(source, config, model_sizes(config, str(at)), OutputLayout.parse(asked["layout"]))


def _cast(checkpoint: HfCheckpoint, device: str, files: OpenFiles) -> _Output:
    """Plan shards that are named like their sources, with the same tensors but for scales and those of MTP."""
    source = open_hf(checkpoint, files, device)
    units = []
    for shard in checkpoint.shards:
        header = checkpoint.header(shard)
        names = tuple(name for name in header.entries if name in source.tensors and name not in source.mtp)
        if names:
            size = sum(source.tensors[name].bytes for name in names)
            units.append(OutputFile(shard, size, names=names, metadata=header.metadata))
    dtypes = {name: source.tensors[name].dtype for unit in units for name in unit.names}
    layers = checkpoint.config["num_hidden_layers"]
    mtp = sorted(name for name in checkpoint.weight_map if is_beyond(name, layers))
    scales = {name for name in checkpoint.weight_map if name.endswith(SCALE_SUFFIX)}
    described = {
        "tensors": len(dtypes),
        "cast": sum(name in source.cast for name in dtypes),
        "copied_tensors": Counter(
            _word(dtype) for name, dtype in sorted(dtypes.items()) if name not in source.cast
        ),
        "scales_left_out": len(scales.difference(mtp)),
        "mtp_left_out": mtp,
        "config": cast_config(checkpoint.config)[1],
    }
    index = (checkpoint.folder / INDEX).is_file()
    return _Output(source, "hf", checkpoint.config, units, dtypes, described, _CAST_PIECE, index=index)


def _export(source: CheckpointViews, config: dict[str, Any], where: str) -> _Output:
    """Plan shards with all tensors of a run's checkpoint, unchanged."""
    folder = str(source.folder)
    if source.format in ("torch_dist", "legacy"):
        model = model_sizes(config, where)
        check_names(source.tensors, source.mtp, source.unknown, model, dist_layout(model), folder)
    adapters = [name for name in source.tensors if ".lora_" in name or name.startswith("base_model.model.")]
    if adapters:
        raise TensorError(
            "The checkpoint has unmerged adapters",
            where=folder,
            why=f"{len(adapters)} tensors belong to PEFT adapters, such as {adapters[0]}.",
            hint="Merge them with PEFT's merge_and_unload first; an export contains only the model's own tensors.",
        )
    _require_floats(source, source.tensors)
    dtypes = {name: view.dtype for name, view in source.tensors.items()}
    values: Counter[str] = Counter()
    for name, dtype in dtypes.items():
        values[_word(dtype)] += source.tensors[name].numel
    described = {"tensors": len(dtypes), "values": dict(sorted(values.items()))}
    files = hf_shards({name: view.bytes for name, view in source.tensors.items()})
    return _Output(
        source,
        "hf",
        config,
        files,
        dtypes,
        described,
    )


def _convert(
    source: CheckpointViews, config: dict[str, Any], model: ModelDims, output: OutputLayout
) -> _Output:
    """Plan the model's tensors in bfloat16 (float32 for the router's bias), or unchanged in Hugging Face's format."""
    layout = output.placements(model)
    check_names(source.tensors, source.mtp, source.unknown, model, layout, str(source.folder))
    for name in layout.by_name:
        view, expected = source.tensors[name], layout.shape(name)
        if view.shape != expected:
            raise TensorError(
                "A tensor's shape differs from the model's",
                where=f"{view.where}: {name}",
                why=f"It is {list(view.shape)}; by the model's config.json it is {list(expected)}.",
            )
    _require_floats(source, layout.by_name)
    left_out = model.tie_word_embeddings and HEAD in source.tensors
    if left_out:
        _require_tied(source)
    if output.format == "hf":
        dtypes = {name: source.tensors[name].dtype for name in layout.by_name}
        files = hf_shards({name: source.tensors[name].bytes for name in layout.by_name})
    else:
        precise = {key for key, stored in layout.stored.items() if stored.precise}
        dtypes = {
            name: torch.float32 if placements[0].stored_key in precise else torch.bfloat16
            for name, placements in layout.by_name.items()
        }
        files = list(units(output, layout, {name: dtype.itemsize for name, dtype in dtypes.items()}))
    if output.format == "legacy":
        largest = max(unit.bytes for unit in files)
    else:
        largest = max(min(source.tensors[name].numel, CHUNK) * of.itemsize for name, of in dtypes.items())
    described = {
        "tensors": len(layout.by_name),
        "stored": len(layout.stored),
        "largest_in_memory": largest,
        "mtp_left_out": sorted(source.mtp),
        "tied_left_out": [HEAD] if left_out else [],
        "rounded": sorted(
            name
            for name, dtype in dtypes.items()
            if torch.promote_types(source.tensors[name].dtype, dtype) != dtype
        ),
    }
    placed = None if output.format == "hf" else layout
    return _Output(source, output.format, config, files, dtypes, described, layout=placed, model=model)


def _require_floats(source: CheckpointViews, names: Any) -> None:
    for name in names:
        view = source.tensors[name]
        if view.dtype not in _FLOATS:
            raise TensorError("Unsupported dtype", where=f"{view.where}: {name}", why=f"It is {view.dtype}.")


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


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
