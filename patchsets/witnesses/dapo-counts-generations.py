"""DAPO's trainer counts generated batches as steps, and counts from 0 after a resume.

Called is RayDAPOTrainer.fit (recipe/dapo/dapo_ray_trainer.py:136@796871d with verl_npu 2.3.0's patch), to its end. Its
workers, reward, checkpoints and metrics are made here; of each update the step is noted.
- filtered: 4 steps to train, and a filter that leaves 1 of the 2 groups of a batch: 2 batches for an update.
- resumed: a run of 6 steps that continues from its checkpoint of step 4, without a filter.
- saved: the checkpoints (every 2 steps) of a run of 5 steps whose data ends after 3; no part of the verdict.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from witness_common import dapo_trainer, show

STAND_INS = ("npu",)

TRAIN, SAMPLES = 2, 2


def fit(steps: int, *, batches: int, loaded: int = 0, filtered: bool = False) -> tuple[list[int], list[int]]:
    """Return the steps that DAPO's loop trains and saves with the given number of data batches."""
    import torch
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer
    from verl import DataProto

    updates: list[int] = []
    saved: list[int] = []

    def log_probs(batch: Any) -> Any:
        return DataProto.from_single_dict(
            {name: torch.zeros(len(batch), 1) for name in ("entropys", "old_log_probs")}
        )

    def update(batch: Any) -> Any:
        assert len(batch) == TRAIN * SAMPLES
        updates.append(one.global_steps)
        return SimpleNamespace(meta_info={"metrics": {}})

    one = dapo_trainer(
        "ab", samples=SAMPLES, train=TRAIN, steps=steps, filtered=filtered, generations=0,
        total_epochs=batches, balance_batch=False, critic_warmup=0, test_freq=-1, save_freq=2,
    )  # fmt: skip
    vars(one.actor_rollout_wg).update(compute_log_prob=log_probs, update_actor=update)
    one._load_checkpoint = lambda: setattr(one, "global_steps", loaded)
    one._save_checkpoint = lambda: saved.append(one.global_steps)
    RayDAPOTrainer.fit(one)
    return updates, saved


def main() -> dict[str, Any]:
    """Train three runs, and compare the first two with the expected steps."""
    from recipe.dapo import dapo_ray_trainer as trainer

    for name in ("compute_data_metrics", "compute_timing_metrics", "compute_throughout_metrics"):
        setattr(trainer, name, lambda **_: {})
    filtered, _ = fit(4, batches=100, filtered=True)
    resumed, _ = fit(6, batches=100, loaded=4)
    _, saved = fit(5, batches=3)
    fault = (filtered, resumed) != ([1, 2, 3, 4], [5, 6])
    return {"fault": fault, "filtered": filtered, "resumed": resumed, "saved": saved}


if __name__ == "__main__":
    show(main)
