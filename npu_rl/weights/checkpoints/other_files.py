"""The files of a checkpoint other than its weights, and which of them are copied to a new checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import chunks, open_file
from npu_rl.common.disk import disk_errors
from npu_rl.weights.checkpoints.output_folder import NOTE
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX
from npu_rl.weights.tensors.npu_rl_tensors.part_file import PART, new_file

HASH_LIST = "npu-rl-sha256.txt"  # of the files of one folder
_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")


@dataclass(frozen=True)
class OtherFiles:
    """Names of a checkpoint folder's files other than config.json, the index and safetensors.

    Attributes:
        copied: Tokenizer, generation_config.json, licence, code; all are small.
        left: Folders, hidden files, and weights in other formats.
    """

    copied: tuple[str, ...]
    left: tuple[str, ...]

    def copy(self, source: Path, target: Path) -> None:
        """Copy the files, each atomically and synced to disk."""
        for name in self.copied:
            copy = target / name
            with disk_errors(copy), open_file(source / name) as reader, new_file(copy) as writer:
                writer.writelines(chunks(reader))

    def size(self, source: Path) -> int:
        """Return the total size in bytes of the copied files."""
        return sum((source / name).stat().st_size for name in self.copied)


def other_files(folder: Path) -> OtherFiles:
    """Sort the other files of a checkpoint's folder into copied and left; links are followed."""
    copied: list[str] = []
    left: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name in (CONFIG, INDEX) or path.name.endswith(".safetensors"):
            continue
        weights = path.name.endswith((*_WEIGHTS, PART, NOTE, HASH_LIST))
        (left if weights or path.name.startswith(".") or not path.is_file() else copied).append(path.name)
    return OtherFiles(tuple(copied), tuple(left))
