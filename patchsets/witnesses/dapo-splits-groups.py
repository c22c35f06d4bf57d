"""DAPO's batch is cut to its first rows after the responses to a prompt have been distributed over the batch.

Called is RayDAPOTrainer.fit (recipe/dapo/dapo_ray_trainer.py@796871d with verl_npu 2.3.0's patch, which repeats by
interleave=False), with a rollout and a reward that are made here. "kept" are the prompts of the rows that are trained
on: whole groups of 3 are "acacac".
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

STAND_INS = ("npu",)


class Stop(Exception):
    """Ends the observed training loop."""


def main() -> dict[str, Any]:
    """Return the rows that DAPO's loop keeps of 4 prompts with 3 responses each: one is filtered, 2 are trained on."""
    from omegaconf import OmegaConf
    from recipe.dapo import dapo_ray_trainer as trainer
    from verl import DataProto

    kept: list[str] = []

    def stop(batch: Any) -> None:
        kept.extend(batch.non_tensor_batch["prompt"].tolist())
        raise Stop

    trainer.compute_response_mask = stop
    prompts = np.array(list("abcd"), dtype=object)
    tensors = {
        name: torch.zeros(4, 2, dtype=torch.int64) for name in ("input_ids", "attention_mask", "position_ids")
    }

    def generate(batch: Any) -> Any:
        return DataProto.from_single_dict({"responses": torch.zeros(len(batch), 2)}, meta_info={"timing": {}})

    def reward(batch: Any, return_dict: bool) -> dict[str, Any]:
        seen: dict[str, int] = {}
        scores = []
        for prompt in batch.non_tensor_batch["prompt"]:
            seen[prompt] = seen.get(prompt, 0) + 1
            scores.append(0.0 if prompt == "b" else float(seen[prompt]))
        return {"reward_tensor": torch.tensor(scores)[:, None], "reward_extra_info": {"acc": scores}}

    config = OmegaConf.create(
        {
            "trainer": {
                "project_name": "p", "experiment_name": "e", "logger": ["console"], "val_before_train": False,
                "profile_steps": None, "profile_continuous_steps": False, "total_epochs": 1,
            },
            "actor_rollout_ref": {"rollout": {"n": 3}},
            "data": {"train_batch_size": 2},
            "algorithm": {
                "adv_estimator": "grpo", "use_kl_in_reward": False,
                "filter_groups": {"enable": True, "metric": "acc", "max_num_gen_batches": 1},
            },
        }
    )  # fmt: skip
    one = SimpleNamespace(
        config=config,
        train_dataloader=[{**tensors, "raw_prompt_ids": prompts, "prompt": prompts}],
        total_training_steps=1,
        actor_rollout_wg=SimpleNamespace(generate_sequences=generate),
        reward_fn=reward,
        val_reward_fn=None,
        use_rm=False,
        _load_checkpoint=lambda: None,
        _start_profiling=lambda _: None,
    )
    try:
        trainer.RayDAPOTrainer.fit(one)
    except Stop:
        pass
    return {"fault": kept != list("acacac"), "kept": "".join(kept)}


if __name__ == "__main__":
    print(json.dumps(main()))
