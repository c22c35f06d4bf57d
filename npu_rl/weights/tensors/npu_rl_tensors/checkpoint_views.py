"""Any checkpoint as the Hugging Face model's tensors: HF, FP8, FSDP, `torch_dist` and legacy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .formats.fsdp_checkpoint import is_fsdp_checkpoint, read_fsdp_checkpoint
from .formats.hf_views import hf_views
from .formats.legacy_checkpoint import is_legacy_checkpoint, iteration_folder, rank_numbers
from .formats.read_torch_dist import METADATA, is_dist_checkpoint
from .formats.tensor_views import OpenFiles, TensorView
from .hf_checkpoint import INDEX, SINGLE, HfCheckpoint
from .layouts.mapped_checkpoint import MappedCheckpoint, map_dist_checkpoint, map_legacy_checkpoint
from .layouts.model_sizes import model_sizes
from .tensor_error import TensorError

Format = Literal["hf", "fsdp", "torch_dist", "legacy"]


@dataclass(frozen=True)
class CheckpointViews:
    """A checkpoint by Hugging Face names.

    Attributes:
        tensors: By name.
        copies: Further copies of the same values, by name.
        cast: Names of those that are stored in FP8.
        mtp: Names of those of multi-token prediction.
        unknown: What is stored, and no tensor of the model.
        objects: Names of what is stored and no tensor.
        digest: Of what describes the tensors: index and headers, .metadata, or the names and sizes of the ranks' files.
    """

    folder: Path
    format: Format
    tensors: dict[str, TensorView]
    digest: str
    copies: Mapping[str, list[TensorView]] = field(default_factory=dict)
    cast: frozenset[str] = frozenset()
    mtp: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return what a report says of it."""
        return {
            "path": str(self.folder),
            "format": self.format,
            "digest": self.digest,
            "tensors": len(self.tensors),
            "values": sum(view.numel for view in self.tensors.values()),
            "fp8_tensors": len(self.cast),
            "copies": sum(len(views) for views in self.copies.values()),
            "objects": len(self.objects),
        }


def checkpoint_format(folder: Path) -> Format:
    """Return the format of a folder. Raises TensorError for a folder without a checkpoint."""
    if is_dist_checkpoint(folder):
        return "torch_dist"
    if is_legacy_checkpoint(folder):
        return "legacy"
    if (folder / INDEX).is_file() or (folder / SINGLE).is_file():
        return "hf"
    if is_fsdp_checkpoint(folder):
        return "fsdp"
    if not folder.is_dir():
        raise TensorError("The folder does not exist", where=str(folder))
    raise TensorError(
        "The folder has no checkpoint",
        where=str(folder),
        why=f"It has neither {INDEX} nor {SINGLE} (Hugging Face), {METADATA} (Megatron's torch_dist), "
        "latest_checkpointed_iteration.txt or mp_rank_* (Megatron's legacy format), nor model_world_size_* (FSDP).",
    )


def open_checkpoint(
    folder: Path,
    config: Mapping[str, Any] | None,
    config_path: str,
    experts_over_tensor: bool,
    files: OpenFiles,
) -> CheckpointViews:
    """Open a checkpoint; no tensor is read yet.

    Args:
        folder: Its folder.
        config: The model's config.json, which Megatron's checkpoints don't have.
        config_path: Where it is, for errors.
        experts_over_tensor: As of `placements.LegacyRanks`.
        files: The open files.

    Raises:
        TensorError: If it can't be read, or its tensors have other shapes than the model's.
    """
    kind = checkpoint_format(folder)
    if kind == "hf":
        checkpoint = HfCheckpoint(folder)
        found = hf_views(checkpoint, files)
        return CheckpointViews(
            folder, kind, found.tensors, checkpoint.digest(), cast=found.cast, mtp=found.mtp
        )
    if kind == "fsdp":
        sharded = read_fsdp_checkpoint(folder, files)
        return CheckpointViews(
            folder, kind, sharded.tensors, sharded.digest, copies=sharded.copies, objects=sharded.objects
        )
    if config is None:
        raise TensorError(
            "The model of a Megatron checkpoint is not known",
            where=str(folder),
            why="Neither side is a Hugging Face folder, which would have a config.json.",
            hint="Name the folder of one: --model-config DIR",
        )
    model = model_sizes(config, config_path)
    if kind == "torch_dist":
        mapped = map_dist_checkpoint(folder, model, files)
        content = files.read(folder / METADATA, 0, files.size(folder / METADATA))
        digest = hashlib.sha256(content).hexdigest()
    else:
        mapped = map_legacy_checkpoint(folder, model, None, experts_over_tensor, files)
        digest = _rank_digest(folder)
    return _views(folder, kind, mapped, digest)


def _views(folder: Path, kind: Format, mapped: MappedCheckpoint, digest: str) -> CheckpointViews:
    return CheckpointViews(
        folder,
        kind,
        mapped.tensors,
        digest,
        copies=mapped.copies,
        unknown=mapped.unknown,
        objects=mapped.objects,
    )


def _rank_digest(folder: Path) -> str:
    sums = hashlib.sha256()
    for numbers, path in sorted(rank_numbers(iteration_folder(folder)).items()):
        sums.update(f"{numbers} {path.stat().st_size}\n".encode())
    return sums.hexdigest()
