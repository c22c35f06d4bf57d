"""Adaptation dapo-steps: DAPO's trainer counts its updates, not the batches that it generates.

With algorithm.filter_groups an update may take several generated batches. DAPO's trainer ends after
`total_training_steps` of them (self.gen_steps, recipe/dapo/dapo_ray_trainer.py:136@796871d), and starts that count at
0 after it has loaded a checkpoint: a filtered run ends early, a resumed one may go on past its last step. Its learning
rate, its checkpoints and its metrics go by updates (self.global_steps), and so does the end of verl's own trainer.

Upstream: verl 4d45c12408 (the count), aa19c1afc4 (the progress bar) and c86c831893 (the checkpoint where the data runs
out, which upstream saves under the number of the next step, also with save_freq -1).
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "dapo-steps"


def counted(trainer: Any) -> int:
    """Return the step that is compared with the trainer's `total_training_steps`."""
    if not enabled(SLUG):
        return int(trainer.gen_steps)
    count(SLUG)
    return int(trainer.global_steps)


def of_skipped() -> int:
    """Return how far the progress bar moves for a batch that is not trained on yet."""
    return 0 if enabled(SLUG) else 1


def save_last(trainer: Any, loaded: int) -> None:
    """Save the last step where the data ran out before `total_training_steps`, if this run has not saved it.

    Args:
        trainer: verl's; its `global_steps` is one more than the last step trained.
        loaded: The step that the run resumed from; 0 for none.
    """
    every, last = trainer.config.trainer.save_freq, trainer.global_steps - 1
    if not enabled(SLUG) or every <= 0 or last <= loaded or last % every == 0:
        return
    trainer.global_steps = last
    trainer._save_checkpoint()
