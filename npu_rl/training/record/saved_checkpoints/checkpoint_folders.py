"""The step of a run's newest checkpoint, from the trainer's tracker file and the folders."""

from __future__ import annotations

import re
from pathlib import Path

from npu_rl.common.bounded import read_file

LATEST = "latest_checkpointed_iteration.txt"
_LONGEST = 64  # bytes


def latest_step(checkpoints: Path) -> int | None:
    """Return the step of the newest checkpoint; None without one, or if its folder is missing.

    A crash between opening and writing the note of it leaves that empty: then it is the newest that has data.pt,
    which verl writes just before.

    The folder is verl's global_step_4, or Megatron's iter_0000004. Without it verl would start from step 0 without
    a message (find_latest_ckpt_path, checkpoint_manager.py:167@55e3c5b).
    """
    step = recorded_step(checkpoints)
    if step is None:
        saved = checkpoints.glob("global_step_*/data.pt")
        steps = [path.parent.name.removeprefix("global_step_") for path in saved]
        return max((int(text) for text in steps if re.fullmatch(r"[0-9]{1,9}", text)), default=None)
    names = (f"global_step_{step}", megatron_folder(step))
    return step if any((checkpoints / name).is_dir() for name in names) else None


def recorded_step(checkpoints: Path) -> int | None:
    """Return the step of the newest checkpoint according to the trainer; None if it can't be read."""
    try:
        return int(read_file(checkpoints / LATEST, _LONGEST).decode("ascii"))
    except (OSError, ValueError):
        return None


def megatron_folder(step: int) -> str:
    """Return the name of a checkpoint's folder in Megatron's layout."""
    return f"iter_{step:07d}"
