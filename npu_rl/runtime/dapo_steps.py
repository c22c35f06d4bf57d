"""Adaptation dapo-steps: DAPO's trainer counts its updates, not the batches that it generates.

With algorithm.filter_groups an update may take several generated batches. DAPO's trainer ends after
`total_training_steps` generated batches (self.gen_steps, recipe/dapo/dapo_ray_trainer.py:136@796871d), and counts from
0 again after loading a checkpoint: a filtered run ends early, and a resumed one may continue past its last step. The
learning rate, checkpoints and metrics count updates (self.global_steps), and so does verl's own trainer.

Fixed upstream in verl 4d45c12408 (the count), aa19c1afc4 (the progress bar) and c86c831893 (the checkpoint when the
data runs out, which upstream saves under the next step's number, even with save_freq -1).
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "dapo-steps"


def counted(trainer: Any) -> int:
    """Return the step number to compare with the trainer's `total_training_steps`."""
    if not enabled(SLUG):
        return int(trainer.gen_steps)
    count(SLUG)
    return int(trainer.global_steps)


def of_skipped() -> int:
    """Return the progress bar's advance for a batch that is not trained on yet."""
    return 0 if enabled(SLUG) else 1


def save_last(trainer: Any, loaded: int) -> None:
    """Save the last step if the data ran out before `total_training_steps` and this run has not saved it.

    Args:
        trainer: verl's trainer; its `global_steps` is one more than the last step trained.
        loaded: The step that the run resumed from; 0 for a new run.
    """
    every, last = trainer.config.trainer.save_freq, trainer.global_steps - 1
    if not enabled(SLUG) or every <= 0 or last <= loaded or last % every == 0:
        return
    trainer.global_steps = last
    trainer._save_checkpoint()
