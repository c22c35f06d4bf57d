"""The tensors of a rollout's model (vLLM's or transformers') under their Hugging Face names.

vLLM fuses projections, here known by name, and experts, of which its layer has those that are on this rank
(`expert_map`, vllm/model_executor/layers/fused_moe/layer.py:749@v0.9.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .held import Held

_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "qkv_proj": ("q_proj", "k_proj", "v_proj")}
_GATE_AND_UP, _DOWN = "experts.w13_weight", "experts.w2_weight"


def tensors_of(model: Any, shapes: Mapping[str, tuple[int, ...]], tensor_rank: int) -> Iterator[Held]:
    """Yield the parts of tensors in this rank's rollout.

    Args:
        shapes: Shape of each whole tensor; values beyond it, as a padded vocabulary's, are left out.
        tensor_rank: This rank among its engine's tensor parallel ranks.
    """
    modules = dict(model.named_modules())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        for found, values in _sources(name, value, modules):
            if found in shapes:
                yield _part(found, values, shapes[found], tensor_rank)


def _sources(
    name: str, value: torch.Tensor, modules: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    above, _, kind = name.rpartition(".")
    parent, _, module = above.rpartition(".")
    if name.endswith((_GATE_AND_UP, _DOWN)):
        for number, values in _experts(modules[above], value):
            if name.endswith(_DOWN):
                yield f"{above}.{number}.down_proj.weight", values
            else:
                for part, half in zip(("gate_proj", "up_proj"), values.chunk(2), strict=True):
                    yield f"{above}.{number}.{part}.weight", half
    elif module in _FUSED:
        sizes = modules[above].output_partition_sizes  # of each projection, on this rank
        for part, values in zip(_FUSED[module], value.split(list(sizes)), strict=True):
            yield f"{parent}.{part}.{kind}", values
    else:
        yield name, value


def _experts(layer: Any, value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield an expert's number in the model and its values."""
    where = getattr(layer, "expert_map", None)
    numbers = (
        range(value.shape[0]) if where is None else [n for n, at in enumerate(where.tolist()) if at >= 0]
    )
    for number in numbers:
        yield number, value[number if where is None else int(where[number])]


def _part(name: str, values: torch.Tensor, shape: tuple[int, ...], rank: int) -> Held:
    """Return the values with their box. Axes shorter than the whole tensor's are the rank's share."""
    values = values[: shape[0]]
    starts = [0 if size == of else rank * size for size, of in zip(values.shape, shape, strict=True)]
    return Held(name, tuple((at, at + size) for at, size in zip(starts, values.shape, strict=True)), values)
