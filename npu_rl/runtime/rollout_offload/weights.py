"""Free the model's matrices, allocate them again, and find those that were not loaded.

Only matrices (two dimensions and more) are freed. Vectors keep their values: norms, biases and the router's correction
bias take some MB of DeepSeek-V3's 23 GB per die, and an actor without such a bias never sends it. Buffers stay too:
`load_weights` sets no rotary cache (vllm/model_executor/models/deepseek_v2.py:741@v0.9.1, which vllm-ascend's model
inherits).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class _Absent:
    """Layout of a freed Parameter, and its values if they are kept."""

    parameter: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    values: Any | None


class Weights:
    """Matrices of `model` (a torch Module). The Parameters stay the same objects, with all their attributes."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._absent: list[_Absent] = []

    def free(self, *, keep: bool) -> int:
        """Free the matrices; with `keep` their values are copied to the host. Returns the freed bytes."""
        import torch

        freed = 0
        for _, parameter in self._matrices():
            data = parameter.data
            values = data.to("cpu", copy=True) if keep else None
            self._absent.append(_Absent(parameter, tuple(data.shape), data.stride(), values))
            freed += data.numel() * data.element_size()
            # an empty tensor on the same device: any use fails on its shape, and it takes no memory
            parameter.data = torch.empty(0, dtype=data.dtype, device=data.device)
        return freed

    def bring_back(self) -> bool:
        """Allocate the matrices again in their old layout, and return whether their values were restored.

        Otherwise they are NaN until `load_weights` writes them.
        """
        import torch

        kept = all(one.values is not None for one in self._absent)
        while self._absent:
            one = self._absent[-1]
            like = one.parameter.data
            data = torch.empty_strided(one.size, one.stride, dtype=like.dtype, device=like.device)
            one.parameter.data = data.fill_(float("nan")) if one.values is None else data.copy_(one.values)
            self._absent.pop()
        return kept

    def unwritten(self) -> list[str]:
        """Return the names of the matrices with a NaN: they were not, or not fully, written since `bring_back`."""
        import torch

        names, sums = [], []
        for name, parameter in self._matrices():
            names.append(name)
            sums.append(parameter.data.sum().isnan())  # a sum needs no memory, and a NaN survives it
        return (
            [name for name, bad in zip(names, torch.stack(sums).tolist(), strict=True) if bad] if sums else []
        )

    def _matrices(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self._model.named_parameters():
            if parameter.dim() > 1:
                yield name, parameter
