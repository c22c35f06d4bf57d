"""Placements: the position of every Hugging Face value in the files of a Megatron checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..formats.boxes import Box
from ..tensor_error import TensorError
from .model_sizes import DEEPSEEK, ModelDims
from .name_tables import Rows, Weight, entries

RANK_FILE = "model_optim_rng.pt"
"""Of a legacy checkpoint, in each rank's folder."""
LEGACY = (DEEPSEEK, "Qwen2ForCausalLM")
"""Models with a table of names of Megatron-core 0.8."""


@dataclass(frozen=True)
class Placement:
    """A box of a Hugging Face tensor and where its values are stored.

    Attributes:
        name: Name of the Hugging Face tensor.
        hf_box: The box in the whole Hugging Face tensor.
        stored_key: Key of the stored tensor, in TensorMap.stored.
        stored_box: The same values in the stored tensor; axes of size 1 may come before the tensor's own.
        transposed: Whether the last two axes are exchanged there.
        replica: Number of the copy of these values, from 0.
    """

    name: str
    hf_box: Box
    stored_key: str
    stored_box: Box
    transposed: bool
    replica: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the checkpoint. `view` is the shape that placements use."""

    shape: tuple[int, ...]
    view: tuple[int, ...]
    precise: bool


@dataclass
class TensorMap:
    """All placements of a model.

    Attributes:
        stored: Stored tensors by key, in a legacy checkpoint "rank name/tensor name".
        by_name: Placements of each Hugging Face tensor.
    """

    stored: dict[str, StoredTensor] = field(default_factory=dict)
    by_name: dict[str, list[Placement]] = field(default_factory=dict)

    def by_stored(self) -> dict[str, list[Placement]]:
        """Return the placements that fill each stored tensor."""
        found: dict[str, list[Placement]] = {key: [] for key in self.stored}
        for placements in self.by_name.values():
            for placement in placements:
                found[placement.stored_key].append(placement)
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a Hugging Face tensor."""
        boxes = [placement.hf_box for placement in self.by_name[name]]
        return tuple(max(box[axis][1] for box in boxes) for axis in range(len(boxes[0])))

    def add(
        self,
        key: str,
        weight: Weight,
        boxes: Sequence[tuple[str, Box]],
        index: tuple[int, ...] = (),
        stack: tuple[int, ...] = (),
        stored_shape: tuple[int, ...] | None = None,
        replica: int = 0,
    ) -> None:
        """Place boxes of Hugging Face tensors into a stored tensor, concatenated along the rows.

        Args:
            key: Of the stored tensor.
            weight: What is stored there.
            boxes: Name of a Hugging Face tensor and the box in it.
            index: Where they go on the leading axes, of a stored tensor of several layers or experts.
            stack: Sizes of these axes.
            stored_shape: Shape of the stored tensor, where it is not `stack` and then the rows and columns.
            replica: As of Placement.
        """
        rows = sum(box[0][1] - box[0][0] for _, box in boxes)
        columns = tuple(stop - start for start, stop in boxes[0][1][1:])
        view = (*stack, *((*columns, rows) if weight.transposed else (rows, *columns)))
        self.stored.setdefault(key, StoredTensor(stored_shape or view, view, weight.precise))
        below = 0
        for name, box in boxes:
            height = box[0][1] - box[0][0]
            here: Box = ((below, below + height), *((0, size) for size in columns))
            if weight.transposed:
                here = (here[1], here[0])
            at = (*((start, start + 1) for start in index), *here)
            placed = Placement(name, box, key, at, weight.transposed, replica)
            self.by_name.setdefault(name, []).append(placed)
            below += height


def dist_layout(model: ModelDims, *, uniform: bool | None = None) -> TensorMap:
    """Return the layout of Megatron-core 0.12.1's `torch_dist`, which has no ranks.

    Args:
        model: The model.
        uniform: Whether all layers are one tensor with the layer as its first axis
            (transformer/transformer_block.py:585@core_v0.12.1). None: as in the model that verl builds.
    """
    if uniform is None:
        uniform = model.uniform
    if uniform and not model.uniform:
        raise ValueError("layers that differ can't be one tensor")
    found = TensorMap()
    for entry in entries(model, "core-0.12"):
        key, index, stack = dist_key(entry, entry.key, model, uniform)
        found.add(key, entry, [(s.name, _rows(s, s.start, s.stop)) for s in entry.sources], index, stack)
    return found


def dist_key(
    entry: Weight, name: str, model: ModelDims, uniform: bool
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return the `torch_dist` key of a name in a weight's module, its index on the leading axes, and their sizes."""
    key, index, stack = name, tuple[int, ...](), tuple[int, ...]()
    if entry.layer is not None:
        key = f"decoder.layers.{name}" if uniform else f"decoder.layers.{entry.layer}.{name}"
        index, stack = ((entry.layer,), (model.num_hidden_layers,)) if uniform else ((), ())
    if entry.expert is not None:
        index, stack = (*index, entry.expert), (*stack, model.num_experts)
    return key, index, stack


@dataclass(frozen=True)
class LegacyRanks:
    """The ranks that a legacy checkpoint is divided among.

    Attributes:
        tensor: Tensor parallel ranks.
        layers: Number of layers in each pipeline stage; empty for an equal number in each of `stages`.
        expert: Expert groups.
        experts_over_tensor: Whether whole experts of a group are distributed among its tensor-parallel ranks
            (MindSpeed's --moe-tp-extend-ep), instead of each being split.
    """

    tensor: int = 1
    layers: tuple[int, ...] = ()
    expert: int = 1
    experts_over_tensor: bool = False
    stages: int = 1

    def with_layers(self, model: ModelDims) -> LegacyRanks:
        """Return the ranks with the layers of each stage. Raises TensorError if they can't be divided evenly."""
        if self.layers:
            return self
        each, rest = divmod(model.num_hidden_layers, self.stages)
        if rest:
            raise TensorError(
                "The model can't be divided among these ranks",
                why=f"{model.num_hidden_layers} layers can't be divided evenly among {self.stages} pipeline stages.",
            )
        return replace(self, layers=(each,) * self.stages)

    def numbers(self, tensor: int, stage: int, group: int) -> tuple[int, ...]:
        """Return the numbers in the name of a rank's folder."""
        second = (stage,) if len(self.layers) > 1 else ()
        return (tensor, *second, *((group,) if self.expert > 1 else ()))


def rank_name(numbers: Sequence[int]) -> str:
    """Return the name of a rank's folder."""
    return "mp_rank_" + "_".join([f"{numbers[0]:02d}", *(f"{number:03d}" for number in numbers[1:])])


def legacy_layout(model: ModelDims, ranks: LegacyRanks) -> TensorMap:
    """Return the layout of a legacy checkpoint of Megatron-core 0.8.

    Raises:
        TensorError: If the model can't be divided among the ranks.
    """
    if model.architecture not in LEGACY:
        raise TensorError(
            f"Missing table of names for {model.architecture} in Megatron's legacy format",
            why=f"There are tables for {' and '.join(LEGACY)}.",
        )
    ranks = ranks.with_layers(model)
    _check_division(model, ranks)
    found = TensorMap()
    first = [sum(ranks.layers[:stage]) for stage in range(len(ranks.layers))]
    for entry in entries(model, "core-0.8"):
        if entry.layer is None:
            stage, key = len(ranks.layers) - 1 if entry.last else 0, entry.key
        else:
            stage = max(n for n, start in enumerate(first) if start <= entry.layer)
            key = f"decoder.layers.{entry.layer - first[stage]}.{entry.key}"
        if entry.expert is None:
            _shared(found, entry, key, stage, ranks)
        else:
            _expert(found, entry, key, stage, ranks, model)
    return found


def _shared(found: TensorMap, entry: Weight, key: str, stage: int, ranks: LegacyRanks) -> None:
    """Place a tensor that isn't an expert's: each expert group has a copy, divided among its tensor-parallel ranks."""
    for group in range(ranks.expert):
        for tensor in range(ranks.tensor):
            pieces = parts_of(entry, tensor, ranks.tensor)
            replica = group if entry.split != "whole" else group * ranks.tensor + tensor
            name = f"{rank_name(ranks.numbers(tensor, stage, group))}/{key}"
            found.add(name, entry, pieces, replica=replica)


def _expert(
    found: TensorMap, entry: Weight, key: str, stage: int, ranks: LegacyRanks, model: ModelDims
) -> None:
    """Place an expert: `weight1` is [hidden, experts x 2 ffn] over the memory of [experts, hidden, 2 ffn]."""
    assert entry.expert is not None
    groups = ranks.expert * (ranks.tensor if ranks.experts_over_tensor else 1)
    local = model.num_experts // groups
    group, index = divmod(entry.expert, local)
    split = 1 if ranks.experts_over_tensor else ranks.tensor
    for part in range(split):
        tensor = group % ranks.tensor if ranks.experts_over_tensor else part
        owner = group // ranks.tensor if ranks.experts_over_tensor else group
        pieces = parts_of(entry, part, split)
        rows = sum(box[0][1] - box[0][0] for _, box in pieces)
        columns = pieces[0][1][1][1] - pieces[0][1][1][0]
        shape = (columns, local * rows) if entry.split == "rows" else (local * columns, rows)
        name = f"{rank_name(ranks.numbers(tensor, stage, owner))}/{key}"
        found.add(name, entry, pieces, (index,), (local,), shape)


def parts_of(entry: Weight, part: int, parts: int) -> list[tuple[str, Box]]:
    """Return the boxes of a tensor's sources that one of `parts` tensor-parallel ranks has."""
    sources: Iterable[Rows] = entry.sources
    if entry.split == "groups":
        share = len(entry.sources) // parts
        sources = entry.sources[part * share : (part + 1) * share]
    found = []
    for source in sources:
        box = _rows(source, source.start, source.stop)
        if entry.split == "rows":
            share = (source.stop - source.start) // parts
            box = _rows(source, source.start + part * share, source.start + (part + 1) * share)
        elif entry.split == "columns":
            share = source.shape[1] // parts
            box = (box[0], (part * share, (part + 1) * share))
        found.append((source.name, box))
    return found


def _rows(source: Rows, start: int, stop: int) -> Box:
    return ((start, stop), *((0, size) for size in source.shape[1:]))


def _check_division(model: ModelDims, ranks: LegacyRanks) -> None:
    wrong = []
    if sum(ranks.layers) != model.num_hidden_layers or min(ranks.layers, default=0) < 1:
        wrong.append(f"the stages have {list(ranks.layers)} layers, the model has {model.num_hidden_layers}")
    if model.tie_word_embeddings and len(ranks.layers) > 1:
        wrong.append("with tied embeddings the last of several stages has a copy, which has no table")
    if model.q_lora_rank is None and model.kv_lora_rank:
        wrong.append("a model without q_lora_rank has no legacy layout")
    if model.num_experts:
        groups = ranks.expert * (ranks.tensor if ranks.experts_over_tensor else 1)
        if model.num_experts % groups:
            wrong.append(f"{model.num_experts} experts can't be dealt out evenly to {groups} groups")
    elif ranks.expert > 1:
        wrong.append("a model without experts has no expert groups")
    sizes = {"vocab_size": model.vocab_size, "num_attention_heads": model.num_attention_heads}
    sizes |= {"num_key_value_heads": model.num_key_value_heads} if model.num_key_value_heads else {}
    sizes |= {"intermediate_size": model.intermediate_size} if model.dense_layers else {}
    if model.num_experts and not ranks.experts_over_tensor:
        sizes["moe_intermediate_size"] = model.moe_intermediate_size
    if model.n_shared_experts:
        sizes["n_shared_experts x moe_intermediate_size"] = (
            model.n_shared_experts * model.moe_intermediate_size
        )
    wrong += [
        f"{name} {size} can't be divided among {ranks.tensor} tensor parallel ranks"
        for name, size in sizes.items()
        if size % ranks.tensor
    ]
    if wrong:
        raise TensorError("The model can't be divided among these ranks", why="\n".join(wrong))
