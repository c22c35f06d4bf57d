"""Masking of secrets in the environment and the files of a run record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from npu_rl.common.disk import private
from npu_rl.common.masking import MASK, Secrets, masked_text, masked_value

# Variables that affect a training run. All others of the user's shell are private.
_RECORDED_PREFIXES = (
    *("ASCEND_", "ATB_", "CUDA_", "GLOO_", "HCCL_", "HF_", "HYDRA_", "LCAL_", "MALLOC_", "MASTER_", "NCCL_"),
    *("NPU_", "NPU_RL_", "OMP_", "PYTHON", "PYTORCH_", "RAY_", "SPT_", "TASK_QUEUE_", "TENSORBOARD_"),
    *("TOKENIZERS_", "TORCH", "TP_SOCKET_", "TRANSFORMERS_", "VERL_", "VLLM_"),
)
_RECORDED_NAMES = {
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PATH",
    "RANK",
    "TMPDIR",
    "WORLD_SIZE",
}


def recorded_environment(environment: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the record: sorted, with secrets masked.

    It has the variables that npu-rl set, which differ from `inherited`, and those that affect training.
    """
    return {
        name: masked_value(name, value)
        for name, value in sorted(environment.items())
        if inherited.get(name) != value or name in _RECORDED_NAMES or name.startswith(_RECORDED_PREFIXES)
    }


# -- files ---------------------------------------------------------------------------------------------

# Text without any of these holds no secret that `masked_text` recognises. One search for each is faster than one
# pattern for all.
_SUSPECT = (
    *(b"://", b"secret", b"pass", b"pwd", b"token", b"auth", b"key", b"credential", b"bearer", b"cookie"),
    *(b"webhook", b"jwt"),
)
# What npu-rl, its driver and Ray write into an attempt, and the trackers and Hydra by themselves in the folder that the
# trainer runs in. A file that a person has put there is left as it is.
_FILES = (
    "alarms.jsonl",
    "command.json",
    "composed.json",
    "config.yaml",
    "drift.json",
    "driver.json",
    "driver.log",
    "end.json",
    "environment.json",
    "host.json",
    "lost-nodes.json",
    "metrics.jsonl",
    "nodes.json",
    "recipe.yaml",
)
_FOLDERS = ("hydra", "outputs", "stacks", "swanlog", "usage", "wandb", "workers")
_BLOCK = 1 << 16  # bytes of lines that are searched together
_LONGEST_LINE = 1 << 20


def mask_files(folder: Path, known: Secrets) -> None:
    """Mask secrets in the generated text files of an attempt's folder, replacing each changed file atomically.

    In JSON only known values are masked: npu-rl's own JSON is written masked, and masking by name could break it.
    Links are not followed. A file with a null byte in its first 8 KiB is not text.
    """
    below = [
        Path(place, name)
        for each in _FOLDERS
        if not (folder / each).is_symlink()
        for place, _, names in os.walk(folder / each)
        for name in names
    ]
    paths = [*(folder / name for name in _FILES), *below]
    regular = [path for path in paths if not path.is_symlink() and path.is_file()]
    for path in regular:
        _mask_file(path, known)


def _mask_file(path: Path, known: Secrets) -> None:
    by_name = path.suffix not in (".json", ".jsonl")
    if not any(block != shown for block, shown in _masked_blocks(path, known, by_name)):
        return
    temporary = path.with_name(f".{path.name[:60]}.{os.urandom(6).hex()}")
    try:
        with open(temporary, "xb", opener=private) as file:
            file.writelines(shown for _, shown in _masked_blocks(path, known, by_name))
        status = path.stat()
        # A log's time is kept: it shows when its process ended.
        os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _masked_blocks(path: Path, known: Secrets, by_name: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield blocks of lines, each unmasked and masked. A very long line is split."""
    forms = [form.encode("utf-8", "surrogateescape") for form in known.forms]
    with open(path, "rb", opener=private) as file:
        if b"\0" in file.read(8192):
            return
        file.seek(0)
        while lines := _block(file):
            block = b"".join(lines)
            shown = _masked(block, forms, False)
            if by_name and _is_suspect(shown):
                shown = b"".join(_masked(line, forms, True) for line in lines)
            yield block, shown


def _block(file: IO[bytes]) -> list[bytes]:
    lines: list[bytes] = []
    size = 0
    while size < _BLOCK and (line := file.readline(_LONGEST_LINE)):
        lines.append(line)
        size += len(line)
    return lines


def _masked(data: bytes, forms: list[bytes], by_name: bool) -> bytes:
    for form in forms:
        data = data.replace(form, MASK.encode())
    if not by_name or not _is_suspect(data):
        return data
    text = masked_text(data.decode("utf-8", "surrogateescape"))
    return text.encode("utf-8", "surrogateescape")


def _is_suspect(data: bytes) -> bool:
    lower = data.lower()
    return any(word in lower for word in _SUSPECT)
