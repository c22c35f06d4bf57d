"""DAPO's trainer counts generated batches as steps, and counts from 0 after a resume.

Called is RayDAPOTrainer.fit (recipe/dapo/dapo_ray_trainer.py:136@796871d with verl_npu 2.3.0's patch), to its end. Its
workers, reward, checkpoints and metrics are made here; of each update the step is noted.
- filtered: 4 steps to train, and a filter that leaves 1 of the 2 groups of a batch: 2 batches for an update.
- resumed: a run of 6 steps that continues from its checkpoint of step 4, without a filter.
- saved: the checkpoints (every 2 steps) of a run of 5 steps whose data ends after 3; no part of the verdict.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

STAND_INS = ("npu",)

TRAIN, SAMPLES = 2, 2


def fit(steps: int, *, batches: int, loaded: int = 0, filtered: bool = False) -> tuple[list[int], list[int]]:
    """Return the steps that DAPO's loop trains and saves with the given number of data batches."""
    from omegaconf import OmegaConf
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer
    from verl import DataProto

    updates: list[int] = []
    saved: list[int] = []

    def load() -> None:
        one.global_steps = loaded

    def generate(batch: Any) -> Any:
        tensors = {
            "responses": torch.zeros(len(batch), 1, dtype=torch.int64),
            "attention_mask": torch.ones(len(batch), 3, dtype=torch.int64),
        }
        return DataProto.from_single_dict(tensors, meta_info={"timing": {}})

    def reward(batch: Any, return_dict: bool) -> dict[str, Any]:
        """Score the samples of each prompt 0 and 1; prompt b's all get 0, so that its group is filtered out."""
        seen: set[str] = set()
        scores = []
        for prompt in batch.non_tensor_batch["prompt"]:
            scores.append(float(prompt in seen and prompt != "b"))
            seen.add(prompt)
        return {"reward_tensor": torch.tensor(scores)[:, None], "reward_extra_info": {"acc": scores}}

    def log_probs(batch: Any) -> Any:
        return DataProto.from_single_dict(
            {name: torch.zeros(len(batch), 1) for name in ("entropys", "old_log_probs")}
        )

    def update(batch: Any) -> Any:
        assert len(batch) == TRAIN * SAMPLES
        updates.append(one.global_steps)
        return SimpleNamespace(meta_info={"metrics": {}})

    config = OmegaConf.create(
        {
            "trainer": {
                "project_name": "p", "experiment_name": "e", "logger": ["console"], "val_before_train": False,
                "profile_steps": None, "profile_continuous_steps": False, "total_epochs": batches,
                "balance_batch": False, "critic_warmup": 0, "test_freq": -1, "save_freq": 2,
            },
            "actor_rollout_ref": {"rollout": {"n": SAMPLES}, "actor": {"loss_agg_mode": "token-mean"}},
            "data": {"train_batch_size": TRAIN},
            "algorithm": {
                "adv_estimator": "grpo", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0,
                "filter_groups": {"enable": filtered, "metric": "acc", "max_num_gen_batches": 0},
            },
        }
    )  # fmt: skip
    names = ("input_ids", "attention_mask", "position_ids")
    prompts = np.array(list("ab"), dtype=object)
    tensors = {name: torch.zeros(2, 2, dtype=torch.int64) for name in names}
    one = SimpleNamespace(
        config=config,
        train_dataloader=[{**tensors, "raw_prompt_ids": prompts, "prompt": prompts}],
        total_training_steps=steps,
        actor_rollout_wg=SimpleNamespace(
            generate_sequences=generate, compute_log_prob=log_probs, update_actor=update
        ),
        resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1),
        reward_fn=reward,
        val_reward_fn=None,
        use_rm=False,
        use_critic=False,
        use_reference_policy=False,
        _load_checkpoint=load,
        _save_checkpoint=lambda: saved.append(one.global_steps),
        _start_profiling=lambda _: None,
        _stop_profiling=lambda _: None,
    )
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
    print(json.dumps(main()))
