"""A step's batch as the driver has it before the update, independent of the trainer's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class StepBatch:
    """The rows of a step.

    Attributes:
        tensors: The trainer's tensors by its names, (rows, ...).
        labels: The trainer's other columns by its names.
        step: The step's number, from 1.
    """

    tensors: Mapping[str, torch.Tensor]
    labels: Mapping[str, Sequence[Any]]
    step: int

    def prompts(self) -> list[Tokens]:
        """Return each row's prompt without padding."""
        width = self.tensors["prompts"].shape[1]
        return _unpadded(self.tensors["prompts"], self.tensors["attention_mask"][:, :width])

    def responses(self) -> list[Tokens]:
        """Return each row's response without padding, as the trainer's attention mask has it."""
        width = self.tensors["responses"].shape[1]
        return _unpadded(self.tensors["responses"], self.tensors["attention_mask"][:, -width:])


def _unpadded(tokens: torch.Tensor, mask: torch.Tensor) -> list[Tokens]:
    return [tuple(row[kept].tolist()) for row, kept in zip(tokens, mask.bool(), strict=True)]
