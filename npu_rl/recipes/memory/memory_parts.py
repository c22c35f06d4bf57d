"""The parts of a die's and a host's memory, each with an id for JSON and a display name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum


class Part(Enum):
    """One kind of memory.

    Attributes:
        value: Its id.
        label: Its name.
        estimate: Whether it comes from practice or a rough formula, rather than from sizes.
    """

    ACTOR_WEIGHTS = "actor-weights", "actor's weights"
    ACTOR_GRADIENTS = "actor-gradients", "actor's gradients"
    OPTIMIZER = "optimizer-states", "optimizer's states"
    SWAPPED = "optimizer-states-in-transit", "optimizer's states being swapped"
    REFERENCE_WEIGHTS = "reference-weights", "reference's weights"
    FSDP_UNITS = "fsdp-units", "FSDP units gathered", True
    ACTIVATIONS = "activations", "activations", True
    LOGITS = "logits", "logits of the longest sequences"
    GATHERED = "gathered-tensor", "largest tensor gathered for the engine"
    BUCKET = "weight-bucket", "bucket of weights for the engine"
    ENGINE_WEIGHTS = "engine-weights", "engine's weights"
    ENGINE_DERIVED = "engine-derived", "W_UV and W_UK_T, made from kv_b_proj"
    ENGINE_ACTIVATIONS = "engine-activations", "engine's activations, as profiled", True
    KV_CACHE = "kv-cache", "KV cache"
    SAMPLING = "sampling", "sampling", True
    HCCL = "hccl-buffers", "HCCL's buffers", True
    CONTEXT = "cann-context", "CANN's context", True
    PINNED_COPIES = "pinned-copies", "copies while weights are offloaded", True
    PROCESSES = "processes", "processes", True

    def __init__(self, key: str, label: str, estimate: bool = False) -> None:
        self._value_ = key
        self.label = label
        self.estimate = estimate

    # Enum's is a function of Python, and counting memory asks for it some 10,000 times
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"{self.label} (estimate)" if self.estimate else self.label


BY_LENGTHS = frozenset({Part.ACTIVATIONS, Part.LOGITS, Part.ENGINE_ACTIVATIONS, Part.SAMPLING})
"""Parts that are counted for sequences as long as the recipe allows, and are less for shorter ones."""

Parts = Mapping[Part, int]
"""The bytes of each part."""


def total(parts: Parts) -> int:
    """Return the bytes of all parts."""
    return sum(parts.values())


def estimated(parts: Parts) -> int:
    """Return the bytes of the parts that are estimates."""
    return sum(size for part, size in parts.items() if part.estimate)


def present(parts: Iterable[tuple[Part, int]]) -> dict[Part, int]:
    """Sum the parts by kind, leaving out those without memory."""
    found: dict[Part, int] = {}
    for part, size in parts:
        if size > 0:
            found[part] = found.get(part, 0) + size
    return found


def listed(parts: Parts) -> str:
    """Return the parts with their sizes as text."""
    return " + ".join(f"{part} {gb(size)}" for part, size in parts.items())


def gb(size: float) -> str:
    """Format bytes in units of 10^9."""
    return f"{size / 1e9:.1f} GB" if abs(size) >= 10**8 else f"{size / 1e6:.2f} MB"
