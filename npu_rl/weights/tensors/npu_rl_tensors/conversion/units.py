"""The output files of a conversion, and the values in each file. Doesn't need torch.

The units of one input and layout are the same in every process, so that a worker needs only the number of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ..formats.boxes import Box, extent, origin, shifted, split
from ..hf_checkpoint import HEAD
from ..layouts.model_sizes import ModelDims
from ..layouts.name_tables import entries
from ..layouts.placements import (
    RANK_FILE,
    LegacyRanks,
    Placement,
    TensorMap,
    dist_key,
    dist_layout,
    legacy_layout,
)
from ..tensor_error import TensorError

_Key = TypeVar("_Key")
OutputFormat = Literal["torch_dist", "legacy", "hf"]

CHUNK = 128 * 1024 * 1024  # values that are read and written at once; larger tensors are several chunks
UNIT = 4 * 1024**3  # bytes of a file of `torch_dist` or Hugging Face's format


@dataclass(frozen=True)
class OutputLayout:
    """The output format of a conversion. `ranks` is used by legacy checkpoints only."""

    format: OutputFormat
    ranks: LegacyRanks = field(default_factory=LegacyRanks)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> OutputLayout:
        """Parse the output of `to_json`."""
        ranks = value["ranks"]
        return cls(value["format"], LegacyRanks(**{**ranks, "layers": tuple(ranks["layers"])}))

    def to_json(self) -> dict[str, Any]:
        """Return the layout as JSON for a worker."""
        return {"format": self.format, "ranks": {**vars(self.ranks), "layers": list(self.ranks.layers)}}

    def placements(self, model: ModelDims) -> TensorMap:
        """Return the placement of each value. Raises TensorError if the model can't be divided among the ranks."""
        return legacy_layout(model, self.ranks) if self.format == "legacy" else dist_layout(model)


@dataclass(frozen=True)
class Chunk:
    """A box of a Hugging Face tensor that is written as one chunk of `placement`."""

    placement: Placement
    hf_box: Box


@dataclass(frozen=True)
class OutputFile:
    """One output file.

    Attributes:
        file: Its path in the output.
        bytes: Size of its values.
        chunks: For `torch_dist`, the chunks in file order.
        stored: For a legacy rank's file, the keys in the layout.
        names: For Hugging Face's format, the tensor names.
        metadata: For Hugging Face's format, the entries of the header's.
    """

    file: str
    bytes: int
    chunks: tuple[Chunk, ...] = ()
    stored: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


def units(output: OutputLayout, layout: TensorMap, item_sizes: Mapping[str, int]) -> Iterator[OutputFile]:
    """Yield all files of a conversion to one of Megatron's formats.

    Args:
        output: What is written.
        layout: Its placements.
        item_sizes: Bytes of a value of each Hugging Face tensor, as it is written.
    """
    return (_dist_units if output.format == "torch_dist" else _legacy_units)(layout, item_sizes)


def _dist_units(layout: TensorMap, item_sizes: Mapping[str, int]) -> Iterator[OutputFile]:
    chunks = [
        Chunk(placement, shifted(part, origin(placement.hf_box)))
        for placements in layout.by_name.values()
        for placement in placements
        for part in split(extent(placement.hf_box), CHUNK)
    ]
    sizes = {
        at: math.prod(extent(chunk.hf_box)) * item_sizes[chunk.placement.name]
        for at, chunk in enumerate(chunks)
    }
    for number, group in enumerate(in_groups(sizes, UNIT)):
        held = tuple(chunks[at] for at in group)
        yield OutputFile(f"__{number}_0.distcp", sum(sizes[at] for at in group), chunks=held)


def _legacy_units(layout: TensorMap, item_sizes: Mapping[str, int]) -> Iterator[OutputFile]:
    by_rank: dict[str, list[str]] = {}
    sizes = dict.fromkeys(layout.stored, 0)
    for name, placements in layout.by_name.items():
        for placement in placements:
            sizes[placement.stored_key] += math.prod(extent(placement.hf_box)) * item_sizes[name]
    for key in layout.stored:
        by_rank.setdefault(key.partition("/")[0], []).append(key)
    for rank, keys in by_rank.items():
        whole = sum(sizes[key] for key in keys)
        yield OutputFile(f"iter_0000001/{rank}/{RANK_FILE}", whole, stored=tuple(keys))


def hf_shards(sizes: Mapping[str, int]) -> list[OutputFile]:
    """Divide tensors by size, in order, into shards with at most UNIT bytes, or with a larger tensor alone."""
    groups = in_groups(sizes, UNIT)
    names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    return [
        OutputFile(name, sum(sizes[one] for one in group), names=tuple(group))
        for name, group in zip(names, groups, strict=True)
    ]


def in_groups(sizes: Mapping[_Key, int], most: int) -> list[list[_Key]]:
    """Divide keys, in order, into groups of at most `most` bytes. A larger one gets a group of its own."""
    groups: list[list[_Key]] = []
    held = 0
    for name, size in sizes.items():
        if not groups or held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def extra_states(model: ModelDims) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Yield key, index and shape of the empty `_extra_state` objects that modules of `torch_dist` need.

    Transformer Engine's layers and Megatron-core's own ask for them by module; which of them do differs by
    specification: with Transformer Engine's RMSNorm the norms do, too (BasicOperation.get_extra_state in
    transformer_engine/pytorch/ops/op.py). Those that nobody asks for do no harm: verl loads with ASSUME_OK_UNEXPECTED
    (verl/utils/model.py:544@55e3c5b).
    """
    for entry in entries(model, "core-0.12"):
        if not entry.key.endswith(".weight"):
            continue
        module = entry.key.removesuffix(".weight")
        if entry.layer is None:
            if module.endswith("layernorm"):
                yield f"{module}._extra_state", (0,), (1,)
            continue
        modules = [module] if ".linear_" in module or module.endswith("layernorm") else []
        if module == "self_attention.linear_proj":
            modules.append("self_attention.core_attention")
        for one in modules:
            key, index, stack = dist_key(entry, f"{one}._extra_state", model, model.uniform)
            yield key, index or (0,), stack or (1,)


def check_names(
    tensors: Mapping[str, Any],
    mtp: frozenset[str],
    unknown: tuple[str, ...],
    model: ModelDims,
    layout: TensorMap,
    where: str,
) -> None:
    """Raise TensorError unless the input has exactly the model's tensors."""
    lost = [name for name in layout.by_name if name not in tensors]
    if lost:
        raise TensorError(
            "The checkpoint is not complete",
            where=where,
            why=f"It lacks {len(lost)} tensors of the model, such as {lost[0]}.",
        )
    more = [
        name
        for name in tensors
        if name not in layout.by_name
        and name not in mtp
        and not name.endswith(".rotary_emb.inv_freq")
        and not (model.tie_word_embeddings and name == HEAD)
    ]
    more += unknown
    if more:
        raise TensorError(
            "The checkpoint has tensors that its model doesn't have",
            where=where,
            why=f"{len(more)} of them, such as {more[0]}.",
        )
