"""Parts of a model's tensors, and whole tensors assembled from all ranks' parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from npu_rl_tensors.formats.boxes import Box, slices


@dataclass(frozen=True)
class Held:
    """A part of a tensor that one rank holds.

    Attributes:
        name: Name in a Hugging Face checkpoint.
        box: The part, in elements of the whole tensor.
        values: Values of the part, in the type in which the rank computes with them.
    """

    name: str
    box: Box
    values: torch.Tensor


@dataclass(frozen=True)
class Whole:
    """Whole tensors of a model.

    Attributes:
        tensors: Values by name.
        faults: Copies that differ between ranks, and tensors that no rank holds, or not wholly, as text.
    """

    tensors: Mapping[str, torch.Tensor]
    faults: tuple[str, ...]


def gather(held: Iterable[Held], shapes: Mapping[str, tuple[int, ...]]) -> Whole:
    """Assemble the whole tensors from all ranks of the default process group. This is a collective call.

    Args:
        held: Parts of this rank.
        shapes: Shape of each whole tensor.
    """
    own = [Held(part.name, part.box, part.values.detach().cpu().clone()) for part in held]
    ranks = [own]
    if torch.distributed.is_initialized():
        ranks = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(ranks, own)
    return put_together(ranks, shapes)


def put_together(ranks: list[list[Held]], shapes: Mapping[str, tuple[int, ...]]) -> Whole:
    """Assemble whole tensors from the parts of each rank."""
    tensors: dict[str, torch.Tensor] = {}
    covered: dict[str, torch.Tensor] = {}
    faults: dict[str, str] = {}
    for rank, parts in enumerate(ranks):
        for part in parts:
            if part.name not in tensors:
                tensors[part.name] = torch.zeros(shapes[part.name], dtype=part.values.dtype)
                covered[part.name] = torch.zeros(shapes[part.name], dtype=torch.bool)
            at = slices(part.box)
            known = covered[part.name][at]
            if not torch.equal(tensors[part.name][at][known], part.values[known]):
                faults.setdefault(
                    part.name, f"{part.name}: rank {rank} trains another copy than a rank before it"
                )
            tensors[part.name][at] = part.values
            covered[part.name][at] = True
    for name, mask in covered.items():
        if not bool(mask.all()):
            faults.setdefault(
                name, f"{name}: no rank trains {int((~mask).sum())} of its {mask.numel()} values"
            )
    for name in sorted(shapes.keys() - tensors.keys()):
        faults[name] = f"{name}: no rank trains it"
    return Whole(tensors, tuple(faults.values()))
