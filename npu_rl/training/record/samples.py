"""Files of a run's samples/: one per step, with prompts, responses and scores.

verl writes them (`_dump_generations`, verl/trainer/ppo/ray_trainer.py@v0.5.0), one JSON object per line.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from npu_rl.common.bounded import NO_FILE

_STEP_FILE = re.compile(r"([0-9]{1,9})\.jsonl")


def sample_steps(samples: Path, *, validation: bool = False) -> dict[int, Path]:
    """Return a run's sample files by step, in ascending order.

    Args:
        samples: The folder.
        validation: Of validations, not of training steps.
    """
    folder = samples / "validation" if validation else samples
    try:
        paths = list(folder.iterdir())
    except OSError as error:
        if error.errno in NO_FILE:
            return {}
        raise
    found = {int(match[1]): path for path in paths if (match := _STEP_FILE.fullmatch(path.name))}
    return dict(sorted(found.items()))


def finite_number(value: object) -> float | None:
    """Return a number of a sample; None for anything else, for NaN, and for what no float holds."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of 309 digits or more
        return None
