"""`weights check` for Megatron checkpoints: their files, and whether a recipe can load the format."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.weights.checkpoints.checkpoint_findings import DTYPES, CheckedFolder, WantedCheckpoint
from npu_rl.weights.checkpoints.output_folder import changed_files, finished_sizes
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import INDEX, listed

_TRACKER = "latest_checkpointed_iteration.txt"
_METADATA = ".metadata"


def is_megatron_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a Megatron checkpoint (torch_dist or legacy), complete or not."""
    if (folder / INDEX).exists() or any(folder.glob("*.safetensors")):
        return False
    parts = (_METADATA, _TRACKER)
    return any((folder / name).is_file() for name in parts) or any(
        any(folder.glob(pattern)) for pattern in ("*.distcp", "mp_rank_*")
    )


def check_megatron(folder: Path, workers: Workers, wanted: WantedCheckpoint | None) -> CheckedFolder:
    """Check the folder of a finished conversion or a trainer, without reading tensor values.

    Raises:
        HostError: If the interpreter can't be run, or has no torch.
    """
    checked = CheckedFolder(folder)
    _compare_sizes(checked)
    if any(folder.glob("*.distcp")) and not (folder / _METADATA).is_file():
        message = "the file is missing; the *.distcp files can't be read without it"
        checked.error("weights-files", folder / _METADATA, message)
        return checked
    try:
        found = workers.run_one(Task("megatron_files.megatron_files", {"folder": str(folder)}, str(folder)))
    except HostError:
        raise
    except NpuRlError as error:
        checked.unreadable(error)
        return checked
    checked.format, checked.shards = found["format"], found["files"]
    checked.bytes = found["bytes"]
    for dtype, count in found["tensors"].items():
        checked.dtypes[DTYPES.get(dtype, dtype.upper())] += count
    if wanted is not None:
        wanted.compare_format(checked, found["ranks"])
    if checked.ok:
        message = (
            f"a checkpoint of Megatron ({checked.format}), whose files are there as it describes them; "
            "it names no model to hold its tensors against"
        )
        fix = "npu-rl weights audit compares it with the weights that it was made of"
        checked.add("weights-megatron", Severity.NOTE, folder, message, fix)
    return checked


def _compare_sizes(checked: CheckedFolder) -> None:
    """Report files that `weights convert` finished but that are now missing or have another size."""
    sizes = finished_sizes(checked.folder)
    changed = changed_files(checked.folder, sizes)
    if changed:
        message = f"{len(changed)} of {len(sizes)} converted files are missing or of another size: {listed(changed)}"
        fix = "copy them again, or convert into another folder"
        checked.error("weights-files", checked.folder, message, fix)
