"""Views of any checkpoint by Hugging Face tensor names: HF, FP8, FSDP, `torch_dist` and legacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .formats.fsdp_checkpoint import fsdp_digest, is_fsdp_checkpoint, read_fsdp_checkpoint
from .formats.hf_views import hf_views
from .formats.legacy_checkpoint import is_legacy_checkpoint, iteration_folder, rank_numbers
from .formats.read_torch_dist import METADATA, is_dist_checkpoint
from .formats.tensor_views import OpenFiles, TensorViews, sampled_digest
from .hf_checkpoint import INDEX, SINGLE, HfCheckpoint
from .layouts.mapped_checkpoint import map_dist_checkpoint, map_legacy_checkpoint
from .layouts.model_sizes import model_sizes
from .tensor_error import TensorError

Format = Literal["hf", "fsdp", "torch_dist", "legacy"]


@dataclass(frozen=True, kw_only=True)
class CheckpointViews(TensorViews):
    """A checkpoint whose tensors have Hugging Face names.

    Attributes:
        digest: Of the files that have the tensors: names, sizes, what describes them, and samples of their data.
    """

    folder: Path
    format: Format
    digest: str

    def describe(self) -> dict[str, Any]:
        """Return a report's description of the checkpoint."""
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
        raise TensorError(
            "The folder does not exist",
            where=str(folder),
            hint="Check the path, or download the model: npu-rl weights get NAME",
        )
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
        return open_hf(HfCheckpoint(folder), files)
    if kind == "fsdp":
        found, digest = read_fsdp_checkpoint(folder, files), fsdp_digest(folder, files)
    elif config is None:
        raise unknown_model(folder)
    elif kind == "torch_dist":
        found = map_dist_checkpoint(folder, model_sizes(config, config_path), files)
        digest = sampled_digest([folder / METADATA, *sorted(folder.glob("*.distcp"))], files)
    else:
        model = model_sizes(config, config_path)
        found = map_legacy_checkpoint(folder, model, None, experts_over_tensor, files)
        ranks = rank_numbers(iteration_folder(folder))
        digest = sampled_digest((path for _, path in sorted(ranks.items())), files)
    return CheckpointViews(**vars(found), folder=folder, format=kind, digest=digest)


def unknown_model(folder: Path) -> TensorError:
    """Return the error for a checkpoint without a config.json."""
    return TensorError(
        "Unknown model of the checkpoint",
        where=str(folder),
        why="Neither side is a Hugging Face folder with a config.json.",
        hint="Pass a folder with the model's config.json: --model-config DIR",
    )


def open_hf(checkpoint: HfCheckpoint, files: OpenFiles, device: str = "cpu") -> CheckpointViews:
    """Open a Hugging Face folder, with the device that casts its FP8. Raises TensorError as `open_checkpoint`."""
    found = hf_views(checkpoint, files, device)
    return CheckpointViews(**vars(found), folder=checkpoint.folder, format="hf", digest=checkpoint.digest())
