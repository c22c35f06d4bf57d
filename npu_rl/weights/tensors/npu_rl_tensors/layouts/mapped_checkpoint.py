"""Views of Megatron checkpoints by Hugging Face tensor names, using the tables of names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from ..formats.boxes import Box, extent, origin, shifted
from ..formats.legacy_checkpoint import iteration_folder, rank_numbers, read_rank_file
from ..formats.read_torch_dist import read_dist_checkpoint
from ..formats.tensor_views import OpenFiles, TensorView, TensorViews, assembled
from ..tensor_error import TensorError
from .model_sizes import ModelDims
from .placements import LegacyRanks, Placement, StoredTensor, TensorMap, dist_layout, legacy_layout, rank_name


def map_dist_checkpoint(folder: Path, model: ModelDims, files: OpenFiles) -> TensorViews:
    """Return a `torch_dist` checkpoint by Hugging Face names; layers may be stacked in one tensor or separate.

    Raises:
        TensorError: If it can't be read, or a tensor has another shape than the model's.
    """
    found = read_dist_checkpoint(folder, files)
    uniform = model.uniform and not any(key.startswith("decoder.layers.0.") for key in found.tensors)
    layout = dist_layout(model, uniform=uniform)
    return _mapped(found.tensors, layout, found.objects, str(folder))


def map_legacy_checkpoint(
    folder: Path, model: ModelDims, ranks: LegacyRanks | None, experts_over_tensor: bool, files: OpenFiles
) -> TensorViews:
    """Return a legacy checkpoint by Hugging Face names.

    Args:
        folder: With latest_checkpointed_iteration.txt, or an iteration of it.
        model: The model.
        ranks: How it is divided; None: as its files show it.
        experts_over_tensor: As of LegacyRanks, which no file shows: the shapes are the same.
        files: The open files.

    Raises:
        TensorError: As `map_dist_checkpoint`; also if ranks are missing.
    """
    folder = iteration_folder(folder)
    numbers = rank_numbers(folder)
    stored: dict[str, TensorView] = {}
    objects: list[str] = []
    for number, path in numbers.items():
        rank = read_rank_file(path, files)
        stored |= {f"{rank_name(number)}/{name}": view for name, view in rank.tensors.items()}
        objects += [f"{rank_name(number)}/{name}" for name in rank.objects]
    if ranks is None:
        ranks = _ranks(numbers, stored, experts_over_tensor, folder)
    wanted = {
        ranks.numbers(tensor, stage, group)
        for tensor in range(ranks.tensor)
        for stage in range(len(ranks.layers))
        for group in range(ranks.expert)
    }
    if wanted != set(numbers):
        lost = sorted(wanted - set(numbers)) or sorted(set(numbers) - wanted)
        raise TensorError(
            "Invalid legacy checkpoint",
            where=str(folder),
            why=f"TP{ranks.tensor} PP{len(ranks.layers)} EP{ranks.expert} has {len(wanted)} ranks, the folder "
            f"{len(numbers)}. {rank_name(lost[0])} is {'missing' if wanted - set(numbers) else 'one too many'}.",
        )
    return _mapped(stored, legacy_layout(model, ranks), tuple(objects), str(folder))


def _ranks(
    numbers: Mapping[tuple[int, ...], Path], stored: Mapping[str, TensorView], over_tensor: bool, folder: Path
) -> LegacyRanks:
    """Infer the layout. A second rank number is a pipeline stage if only number 0 has the embeddings."""
    counts = [len({number[axis] for number in numbers}) for axis in range(len(next(iter(numbers))))]
    stages, groups = 1, 1
    if len(counts) == 3:
        stages, groups = counts[1], counts[2]
        if groups == 1:
            raise TensorError(
                "Ranks are missing",
                where=str(folder),
                why="All file names contain expert group 0, which names contain only if there are several groups. "
                "verl 54c9b73 without the patch expert-checkpoint saves only that group; the other experts are lost.",
            )
    elif len(counts) == 2:
        second = f"{rank_name((0, counts[1] - 1))}/embedding.word_embeddings.weight"
        stages, groups = (1, counts[1]) if second in stored else (counts[1], 1)
    layers = []
    for stage in range(stages):
        prefix = (
            rank_name(LegacyRanks(counts[0], (1,) * stages, groups).numbers(0, stage, 0)) + "/decoder.layers."
        )
        held = {int(key[len(prefix) :].split(".")[0]) for key in stored if key.startswith(prefix)}
        if held != set(range(len(held))):
            raise TensorError(
                "Invalid legacy checkpoint",
                where=str(folder),
                why=f"Stage {stage} has the layers {sorted(held)}; they are counted from 0 in each.",
            )
        layers.append(len(held))
    return LegacyRanks(counts[0], tuple(layers), groups, over_tensor)


def _mapped(
    stored: Mapping[str, TensorView], layout: TensorMap, objects: tuple[str, ...], where: str
) -> TensorViews:
    """Return views of the tensors that the checkpoint has. Raises TensorError if one is incomplete."""
    for key, expected in layout.stored.items():
        view = stored.get(key)
        if view is not None and view.shape != expected.shape:
            raise TensorError(
                "A tensor's shape differs from the model's",
                where=f"{where}: {key}",
                why=f"It is {list(view.shape)}; by the model's config.json it is {list(expected.shape)}.",
            )
    tensors: dict[str, TensorView] = {}
    copies: dict[str, list[TensorView]] = {}
    for name, placements in layout.by_name.items():
        keys = [placement.stored_key for placement in placements]
        lost = [key for key in keys if key not in stored]
        if lost == keys:
            continue
        if lost:
            raise TensorError(
                "Tensors are missing on some of the ranks",
                where=where,
                why=f"{name} is stored in {len(keys)} of them, and {len(lost)} are missing, such as {lost[0]}.",
                hint="Copy the ranks' files again from where they were written.",
            )
        if len({stored[key].dtype for key in keys}) > 1:
            such = ", ".join(f"{key} in {stored[key].dtype}" for key in keys[:2])
            raise TensorError(
                "The parts of a tensor have several dtypes",
                where=where,
                why=f"{name} is stored in {len(keys)} parts, such as {such}.",
                hint="They may belong to two checkpoints. Copy the ranks' files again from where they were written.",
            )
        by_replica: dict[int, list[Placement]] = {}
        for placement in placements:
            by_replica.setdefault(placement.replica, []).append(placement)
        tensors[name], *further = (
            assembled(
                name,
                layout.shape(name),
                [
                    (one.hf_box, _placed_view(one, stored[one.stored_key], layout.stored[one.stored_key]))
                    for one in own
                ],
            )
            for _, own in sorted(by_replica.items())
        )
        if further:
            copies[name] = further
    unknown = tuple(key for key in stored if key not in layout.stored)
    return TensorViews(tensors, copies, unknown=unknown, objects=objects)


def _placed_view(placement: Placement, view: TensorView, stored: StoredTensor) -> TensorView:
    """Return the view of a placement's values."""
    read = partial(_read_placed, placement, view, stored)
    return TensorView(placement.name, extent(placement.hf_box), view.dtype, view.where, read)


def _read_placed(placement: Placement, view: TensorView, shape: StoredTensor, box: Box) -> torch.Tensor:
    """Read a box of a placement, given relative to the placement, from the stored tensor."""
    at = box_in_stored(placement, box)
    if shape.view != shape.shape:
        if view.reshape is None:
            raise TensorError("A stored tensor is not contiguous", where=f"{view.where}: {view.name}")
        view = view.reshape(shape.view)
    data = view.read(at)
    data = data.reshape(data.shape[len(at) - len(box) :])
    return data.transpose(-1, -2).contiguous() if placement.transposed else data


def box_in_stored(placement: Placement, box: Box) -> Box:
    """Convert a box relative to a placement to the box in the stored tensor's view."""
    if placement.transposed:
        box = (*box[:-2], box[-1], box[-2])
    lead = len(placement.stored_box) - len(box)
    return (*placement.stored_box[:lead], *shifted(box, origin(placement.stored_box[lead:])))
