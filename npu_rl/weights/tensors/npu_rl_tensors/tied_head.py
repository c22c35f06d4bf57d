"""Comparison of a stored output head with the embeddings that it is tied to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .audit import compare
from .formats.hf_views import hf_views
from .formats.tensor_views import OpenFiles, TensorView
from .hf_checkpoint import EMBEDDINGS, HEAD, HfCheckpoint


def tied_head(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Compare the head with the embeddings. Arguments: `folder`, a Hugging Face checkpoint."""
    views = hf_views(HfCheckpoint(Path(arguments["folder"])), OpenFiles()).tensors
    return {"difference": head_difference(views, progress)}


def head_difference(tensors: Mapping[str, TensorView], progress: Callable[[int], None]) -> str:
    """Return how the stored head differs from the embeddings; empty if they are equal or one is not stored."""
    if HEAD not in tensors or EMBEDDINGS not in tensors:
        return ""
    head, embeddings = tensors[HEAD], tensors[EMBEDDINGS]
    found = compare(head, embeddings, progress)
    if not found.different:
        return ""
    if found.state == "shape":
        return f"{HEAD} is {list(head.shape)}, and {EMBEDDINGS} is {list(embeddings.shape)}"
    index, (one, other) = ", ".join(map(str, found.index)), found.values
    return (
        f"{found.different:,} of {head.numel:,} values of {HEAD} differ from {EMBEDDINGS}: "
        f"at [{index}] {one!r} and {other!r}"
    )
