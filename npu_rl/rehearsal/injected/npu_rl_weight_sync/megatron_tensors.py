"""The parameters and buffers of a Megatron model, under their Hugging Face names.

Names and fusions are those of `npu_rl_tensors.layouts`, which `npu-rl weights` converts with, and not the tree's: a
fault in the trainer's converter does not hide itself. Sources of the names of grouped experts: weight0, weight1, ... of
TEGroupedMLP, weight1 and weight2 of GroupedMLP (megatron/core/transformer/moe/experts.py at core_v0.12.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from npu_rl_tensors.formats.boxes import extent
from npu_rl_tensors.layouts.model_sizes import ModelDims
from npu_rl_tensors.layouts.name_tables import Weight, entries
from npu_rl_tensors.layouts.placements import parts_of

from .held import Held

_IN_LAYER = re.compile(r"decoder\.layers\.([0-9]+)\.(.+)")
_EXPERT = re.compile(
    r"mlp\.experts\.(?:local_experts\.([0-9]+)\.(linear_fc[12])\.weight|(linear_fc[12])\.weight([0-9]+))"
)
_STACKED = ("mlp.experts.weight1", "mlp.experts.weight2")


@dataclass(frozen=True)
class Ranks:
    """This rank's position in Megatron's groups. `experts` is its index among the ranks that divide the experts."""

    tensor: int = 0
    tensors: int = 1
    experts: int = 0
    expert_groups: int = 1


def megatron_ranks(dims: ModelDims, local_experts: int) -> Ranks:
    """Return this rank's position, from Megatron's parallel state.

    Args:
        local_experts: Experts of a layer that this rank holds; 0 if it has none.
    """
    from megatron.core import parallel_state as mpu

    tensor, tensors = mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()
    groups = dims.num_experts // local_experts if local_experts else 1
    expert = mpu.get_expert_model_parallel_rank()
    if groups > mpu.get_expert_model_parallel_world_size():
        expert = expert * tensors + tensor  # dealt out over tensor parallel ranks, too (--moe-tp-extend-ep)
    return Ranks(tensor, tensors, expert, groups)


def parameters(chunks: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and saved buffers, under Megatron's names with global layer numbers."""
    for chunk in chunks:
        while hasattr(chunk, "module"):
            chunk = chunk.module
        numbers = [layer.layer_number - 1 for layer in chunk.decoder.layers]
        own = dict(chunk.named_parameters())
        state = {name: value for name, value in chunk.state_dict().items() if isinstance(value, torch.Tensor)}
        for name, value in {**state, **own}.items():
            found = _IN_LAYER.fullmatch(name)
            yield (f"decoder.layers.{numbers[int(found[1])]}.{found[2]}" if found else name), value


def tensors_of(chunks: Iterable[Any], dims: ModelDims, unknown: set[str]) -> Iterator[Held]:
    """Yield the parts of tensors that this rank trains.

    Args:
        chunks: The model, one Module per virtual pipeline stage.
        dims: Sizes of the whole model.
        unknown: Is given the names that are in no table.
    """
    table = _table(dims)
    named = list(parameters(chunks))
    ranks = megatron_ranks(dims, _local_experts(named, dims))
    for name, value in named:
        found = list(_entries_of(name, value, table, dims, ranks))
        if not found:
            unknown.add(name)
        for entry, values in found:
            yield from _parts(entry, values, ranks)


def _table(dims: ModelDims) -> Mapping[tuple[int | None, str, int | None], Weight]:
    """Return the table entries of both naming generations, by layer, key and expert."""
    return {
        (entry.layer, entry.key, entry.expert): entry
        for style in ("core-0.8", "core-0.12")
        if style == "core-0.12" or dims.q_lora_rank or not dims.kv_lora_rank
        for entry in entries(dims, style)  # type: ignore[arg-type]
    }


def _local_experts(named: Iterable[tuple[str, torch.Tensor]], dims: ModelDims) -> int:
    numbers = set()
    for name, value in named:
        found = _IN_LAYER.fullmatch(name)
        expert = _EXPERT.fullmatch(found[2]) if found else None
        if expert:
            numbers.add(int(expert[1] or expert[4]))
        elif found and found[2] == _STACKED[0]:
            return value.numel() // (2 * dims.moe_intermediate_size * dims.hidden_size)
    return len(numbers)


def _entries_of(
    name: str,
    value: torch.Tensor,
    table: Mapping[tuple[int | None, str, int | None], Weight],
    dims: ModelDims,
    ranks: Ranks,
) -> Iterator[tuple[Weight, torch.Tensor]]:
    """Yield the table entries of a parameter (one per expert) and their values."""
    in_layer = _IN_LAYER.fullmatch(name)
    layer, key = (int(in_layer[1]), in_layer[2]) if in_layer else (None, name)
    first = ranks.experts * (dims.num_experts // ranks.expert_groups)
    expert = _EXPERT.fullmatch(key)
    if expert:
        number = first + int(expert[1] or expert[4])
        key = f"mlp.experts.experts.{expert[2] or expert[3]}.weight"
        if entry := table.get((layer, key, number)):
            yield entry, value
    elif key in _STACKED:
        count = dims.num_experts // ranks.expert_groups
        shape = (count, dims.hidden_size, -1) if key == _STACKED[0] else (count, -1, dims.hidden_size)
        for index, values in enumerate(value.view(shape)):
            if entry := table.get((layer, key, first + index)):
                yield entry, values.transpose(0, 1)
    elif entry := table.get((layer, key, None)):
        yield entry, value


def _parts(entry: Weight, values: torch.Tensor, ranks: Ranks) -> Iterator[Held]:
    """Yield the parts of the sources that are concatenated along a parameter's rows."""
    whole = entry.expert is not None  # each expert is one rank's
    start = 0
    for name, box in parts_of(entry, 0 if whole else ranks.tensor, 1 if whole else ranks.tensors):
        rows = extent(box)[0]
        yield Held(name, box, values[start : start + rows])  # beyond the vocabulary there may be padding
        start += rows
