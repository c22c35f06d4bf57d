"""The conversion itself: plan, look, read, write, put in place. Every step ends on all ranks or on none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import writing
from .architecture import Architecture, read_architecture
from .errors import ConversionError
from .layout import Layout, lay_out
from .pieces import Piece, State, names, pieces, states
from .ranks import Ranks, ranks
from .weights import Weights

_STORED = ("BF16", "F16", "F32")
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Conversion:
    """What this rank did. bytes: of its share of the checkpoint. files: safetensors files it opened."""

    layout: Layout
    rank: int
    tensors: int
    bytes: int
    files: int


def convert(
    hf_folder: str | Path,
    output: str | Path,
    *,
    pipeline: int | None = None,
    expert: int = 1,
    layers: Sequence[int] | None = None,
    check: bool = False,
) -> Conversion:
    """Convert the DeepSeek-V3 in `hf_folder` to a checkpoint of Megatron-core's `dist_checkpointing` in `output`.

    Called by every rank of the default process group, of torchrun (a group is made then), or by one process alone.
    The ranks must be pipeline x expert; the layout divides only the work, the result loads at any other. A rank
    reads its own layers, and of these its own experts, one tensor at a time; the host memory it takes is its share of
    the checkpoint and one tensor. Weights are written as bfloat16, bit for bit where they are; the bias of the router
    as float32.

    pipeline: stages (None: the ranks / expert). expert: expert groups. layers: of each stage (None: as even as can
    be). check: read the checkpoint back and compare every tensor; with an `output` that is there, only compare.

    Raises ConversionError on every rank if anything is wrong on any; `output` is then as it was.
    """
    model_folder, place = Path(hf_folder), Path(output).absolute()
    with ranks() as group:
        model = group.together(lambda: read_architecture(model_folder))
        layout = group.together(lambda: lay_out(model, group.world, pipeline, expert, layers))
        with contextlib.closing(group.together(lambda: Weights(model_folder))) as weights:
            own = pieces(model, layout, group.rank)
            group.together(lambda: _look(weights, model, own, group))
            result = Conversion(layout, group.rank, len(own), sum(p.bytes for p in own), len(weights.opened))
            _describe(group, layout, result)
            if not (check and place.is_dir() and any(place.iterdir())):
                _write(group, weights, own, model, layout, place)
            if check:
                _compare(group, weights, own, place)
    return result


def _look(weights: Weights, model: Architecture, own: list[Piece], group: Ranks) -> None:
    """Compare what is there with what there has to be: names of all tensors, shapes of this rank's."""
    wanted = names(model)
    scales = sorted(name for name in weights.names if name.endswith("_scale_inv"))
    if scales:
        raise ConversionError(
            f"{weights.folder} has {len(scales)} tensors of scales ({scales[0]}): its weights are quantised; "
            "dequantise them to bfloat16 first"
        )
    lost = sorted(wanted - weights.names)
    if lost:
        raise ConversionError(f"{weights.folder} lacks {len(lost)} tensors of this model, {lost[0]} for one")
    more = sorted(name for name in weights.names - wanted if not _left_out(name, model))
    if more:
        raise ConversionError(
            f"{weights.folder} has {len(more)} tensors that config.json's model has no place for, {more[0]} for one"
        )
    if group.rank == 0 and (further := [name for name in weights.names if _layer(name) >= model.layers]):
        group.say(
            f"WARNING: {len(further)} tensors of layers from {model.layers} on (multi-token prediction) are left out; "
            "verl has no place for them"
        )
    for piece in own:
        entry = weights.entry(piece.name)
        if entry.shape != piece.shape:
            raise ConversionError(
                f"{weights.folder / entry.file}: {piece.name} is {list(entry.shape)}, by config.json it is "
                f"{list(piece.shape)}"
            )
        if entry.dtype not in _STORED:
            raise ConversionError(
                f"{weights.folder / entry.file}: {piece.name} is stored as {entry.dtype}; only {', '.join(_STORED)} "
                "are weights that can be taken as they are"
            )


def _left_out(name: str, model: Architecture) -> bool:
    """Whether a tensor that the model lacks may be there: transformers ignores these, too."""
    return (
        _layer(name) >= model.layers
        or name.endswith(".rotary_emb.inv_freq")
        or (model.tied and name == "lm_head.weight")
    )


def _layer(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] and len(parts) > 2 and parts[2].isdigit() else -1


def _describe(group: Ranks, layout: Layout, own: Conversion) -> None:
    stage, gigabytes = layout.stage(group.rank), own.bytes / 1e9
    held = layout.layers_of(stage)
    group.say(
        f"stage {stage} of {layout.pipeline} (layers {held[0]}-{held[-1]}), expert group "
        f"{layout.expert_group(group.rank)} of {layout.expert}: {own.tensors} tensors, {gigabytes:.3f} GB"
    )


def _write(
    group: Ranks, weights: Weights, own: list[Piece], model: Architecture, layout: Layout, output: Path
) -> None:
    with contextlib.ExitStack() as held:
        group.first(lambda: writing.refuse_occupied(output))
        group.first(lambda: held.enter_context(writing.staged(output)))
        began = time.monotonic()
        try:
            _read_and_save(group, weights, own, states(model, layout, group.rank), writing.staging(output))
        except ConversionError:
            group.first(lambda: writing.discard(output))
            raise
        group.first(lambda: writing.put_in_place(output))
        group.say(f"done in {time.monotonic() - began:.0f} s: {output}")


def _read_and_save(
    group: Ranks, weights: Weights, own: list[Piece], extra: list[State], folder: Path
) -> None:
    began = time.monotonic()
    tensors = group.together(lambda: _read_all(group, weights, own))
    group.say(f"read in {time.monotonic() - began:.0f} s; writing")
    # Rank 0 writes more than the others.
    group.together(lambda: writing.save(tensors, extra, folder, first=group.rank == 0))


def _read_all(group: Ranks, weights: Weights, own: list[Piece]) -> dict[str, Any]:
    """This rank's ShardedTensors, by the names of the Hugging Face model. Read file by file, in the files' order."""
    found: dict[str, Any] = {}
    whole, done, told = sum(piece.bytes for piece in own), 0, time.monotonic()
    for piece in _in_order(weights, own):
        found[piece.name] = writing.sharded(piece, _read(weights, piece))
        done += piece.bytes
        if time.monotonic() - told > _SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            group.say(f"{done / 1e9:.1f} of {whole / 1e9:.1f} GB read, {len(found)} of {len(own)} tensors")
    return found


def _in_order(weights: Weights, own: list[Piece]) -> list[Piece]:
    def place(piece: Piece) -> tuple[str, int]:
        entry = weights.entry(piece.name)
        return entry.file, entry.start

    return sorted(own, key=place)


def _read(weights: Weights, piece: Piece) -> Any:
    import torch

    return weights.read(piece.name).to(torch.float32 if piece.precise else torch.bfloat16)


def _compare(group: Ranks, weights: Weights, own: list[Piece], output: Path) -> None:
    """Read the checkpoint and compare it, bit for bit, with the model. Takes a rank's share of memory once more."""
    import torch

    found = {
        piece.name: writing.sharded(
            piece, torch.empty(piece.shape, dtype=torch.float32 if piece.precise else torch.bfloat16)
        )
        for piece in own
    }
    data = {
        name: tensor.data for name, tensor in found.items()
    }  # `load` fills these, and empties the dictionary
    group.together(lambda: _loaded(found, output))

    def compare() -> None:
        for piece in _in_order(weights, own):
            if not torch.equal(data[piece.name], _read(weights, piece)):
                raise ConversionError(f"{output}: {piece.key} is not {piece.name} of {weights.folder}")

    group.together(compare)
    group.say(f"{len(own)} tensors of {output} are the model's, bit for bit")


def _loaded(tensors: dict[str, Any], output: Path) -> None:
    from megatron.core.dist_checkpointing.core import CheckpointingException

    try:
        writing.load(tensors, output)
    except (CheckpointingException, OSError, RuntimeError, KeyError, ValueError) as error:
        raise ConversionError(
            f"{output} can't be read as a checkpoint: {type(error).__name__}: {error}"
        ) from error
