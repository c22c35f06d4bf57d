"""Checks whether a Megatron checkpoint's files match its description, without reading tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .checkpoint_views import checkpoint_format
from .formats.legacy_checkpoint import iteration_folder, rank_numbers, read_rank_file
from .formats.read_torch_dist import read_dist_checkpoint, require_whole_files
from .formats.tensor_views import OpenFiles, TensorView
from .tensor_error import TensorError


def megatron_files(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:  # noqa: ARG001
    """Read the metadata of torch_dist, or of each rank's legacy file, without reading tensor values.

    Args:
        arguments: `folder`.

    Returns:
        `format`; `files` with tensors, and their `bytes`; `tensors`: count by dtype; `ranks` of a legacy checkpoint:
        how many numbers each part of its names has.

    Raises:
        TensorError: If a file is missing, truncated, or inconsistent with the others.
    """
    folder = Path(arguments["folder"])
    kind = checkpoint_format(folder)
    files = OpenFiles()
    tensors: Counter[str] = Counter()
    sizes: list[int] = []
    if kind == "torch_dist":
        paths = sorted(folder.glob("*.distcp"))
        require_whole_files(folder, files)
        _count(tensors, read_dist_checkpoint(folder, files).tensors.values())
    elif kind == "legacy":
        ranks = rank_numbers(iteration_folder(folder))
        sizes = _rank_sizes(ranks, folder)
        paths = list(ranks.values())
        for path in paths:
            _count(tensors, read_rank_file(path, files).tensors.values())
    else:
        raise TensorError("The folder has no Megatron checkpoint", where=str(folder))
    total = sum(path.stat().st_size for path in paths)
    return {"format": kind, "files": len(paths), "bytes": total, "tensors": dict(tensors), "ranks": sizes}


def _rank_sizes(ranks: dict[tuple[int, ...], Path], folder: Path) -> list[int]:
    """Return the number of ranks on each axis. Raises TensorError for a gap; ranks missing at the end go unnoticed."""
    sizes = [max(numbers) + 1 for numbers in zip(*ranks, strict=True)]
    if len(ranks) != math.prod(sizes):
        raise TensorError(
            "Invalid legacy checkpoint",
            where=str(folder),
            why=f"It has the files of {len(ranks)} ranks, and the highest of their numbers make {math.prod(sizes)}.",
        )
    return sizes


def _count(tensors: Counter[str], views: Iterable[TensorView]) -> None:
    tensors.update(str(view.dtype).removeprefix("torch.") for view in views)
