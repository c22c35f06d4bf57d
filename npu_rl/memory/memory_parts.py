"""What takes memory on a die and on a host: each part with the id that programs read and the name people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum


class Part(Enum):
    """One kind of bytes. `estimate`: it is not counted from sizes, but taken from practice or a rough formula."""

    ACTOR_WEIGHTS = "actor-weights", "actor's weights"
    ACTOR_GRADIENTS = "actor-gradients", "actor's gradients"
    OPTIMIZER = "optimizer-states", "optimizer's states"
    SWAPPED = "optimizer-states-in-transit", "optimizer's states being swapped"
    REFERENCE_WEIGHTS = "reference-weights", "reference's weights"
    FSDP_UNITS = "fsdp-units", "FSDP units gathered", True
    ACTIVATIONS = "activations", "activations", True
    LOGITS = "logits", "logits of the longest sequences"
    GATHERED = "gathered-tensor", "largest tensor gathered for the engine"
    ENGINE_WEIGHTS = "engine-weights", "engine's weights"
    ENGINE_DERIVED = "engine-derived", "W_UV and W_UK_T, made from kv_b_proj"
    ENGINE_ACTIVATIONS = "engine-activations", "engine's activations, as profiled", True
    KV_CACHE = "kv-cache", "KV cache"
    SAMPLING = "sampling", "sampling", True
    HCCL = "hccl-buffers", "HCCL's buffers", True
    CONTEXT = "cann-context", "CANN's context", True
    PINNED_COPIES = "pinned-copies", "copies while weights are offloaded", True
    PROCESSES = "processes", "processes", True
    OBJECT_STORE = "object-store", "Ray's object store", True

    def __init__(self, key: str, label: str, estimate: bool = False) -> None:
        self.key = key
        self.label = label
        self.estimate = estimate

    def __str__(self) -> str:
        return f"{self.label} (estimate)" if self.estimate else self.label


Parts = Mapping[Part, int]
"""Part -> bytes."""


def total(parts: Parts) -> int:
    """Bytes of all parts."""
    return sum(parts.values())


def estimated(parts: Parts) -> int:
    """Bytes of those parts that are estimates."""
    return sum(size for part, size in parts.items() if part.estimate)


def present(parts: Iterable[tuple[Part, int]]) -> dict[Part, int]:
    """The parts that take any memory, summed by kind."""
    found: dict[Part, int] = {}
    for part, size in parts:
        if size > 0:
            found[part] = found.get(part, 0) + size
    return found


def listed(parts: Parts) -> str:
    """The parts with their sizes, for people."""
    return " + ".join(f"{part} {gb(size)}" for part, size in parts.items())


def gb(size: float) -> str:
    """Bytes for people, in units of 10^9."""
    return f"{size / 1e9:.1f} GB" if abs(size) >= 10**8 else f"{size / 1e6:.2f} MB"
