"""Steps of a tree's own `fit`, without Ray: the workers are a stand-in, and one mistake is edited into the tree's code.

    python fit_without_ray.py MADE STEPS [TRAINER [OVERRIDE...]] < CASES

TRAINER is MODULE:CLASS, by default verl's own. CASES is JSON: by name [module, function, before, after], or []. Prints
by name the difference that ended it, or "".
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import verl
from hydra import compose, initialize_config_dir
from npu_rl_recompute.difference import RecomputedDifferenceError
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role
from verl.utils import torch_functional
from verl.utils.tokenizer import hf_tokenizer

BATCH, GROUP, LENGTH, END = 4, 4, 8, 2


class Workers:
    """The worker group: random responses, some of which end early, and log-probabilities like those of one model."""

    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(1)

    def generate_sequences(self, data: DataProto) -> DataProto:
        each = GROUP if len(data) == BATCH else 1  # verl at 54c9b73 repeats prompts in its rollout
        prompts, mask = (
            data.batch[name].repeat_interleave(each, 0) for name in ("input_ids", "attention_mask")
        )
        shape = (len(prompts), LENGTH)
        responses = torch.randint(5, 20, shape, generator=self.random)
        responses[torch.rand(shape, generator=self.random) < 0.1] = END
        kept = torch_functional.get_response_mask(responses, END, mask.dtype)
        tensors = {
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], 1),
            "attention_mask": torch.cat([mask, kept], 1),
            "position_ids": torch.zeros(len(prompts), prompts.shape[1] + LENGTH, dtype=torch.long),
            "rollout_log_probs": self._log_probs(responses, 0),
        }
        return DataProto.from_dict(tensors, meta_info={"timing": {}})

    def _log_probs(self, responses: torch.Tensor, seed: int) -> torch.Tensor:
        table = torch.rand(20, generator=torch.Generator().manual_seed(seed))
        return -1 - table[responses] - 1e-5 * torch.rand(responses.shape, generator=self.random)

    def compute_log_prob(self, data: DataProto) -> DataProto:
        found = self._log_probs(data.batch["responses"], 0)
        return DataProto.from_dict({"old_log_probs": found, "entropys": torch.zeros_like(found)})

    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"ref_log_prob": self._log_probs(data.batch["responses"], 1)})

    def update_actor(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"actor/lr": [1e-3]}})


class Pool:
    """As much of a resource pool as `fit` asks for."""

    def get_n_gpus(self) -> int:
        return 1


@contextmanager
def edited(module: str, function: str, before: str, after: str) -> Iterator[None]:
    """Replace text of a function of the tree, which has to have it once."""
    owner: Any = importlib.import_module(module)
    *classes, name = function.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(original)))
    source = source[source.index("def ") :]
    assert source.count(before) == 1, (function, source.count(before))
    names = dict(vars(importlib.import_module(module)))
    exec(compile(source.replace(before, after), function, "exec"), names)
    setattr(owner, name, names[name])
    try:
        yield
    finally:
        setattr(owner, name, original)


def fit(trainer_class: Any, made: Path, steps: int, others: list[str]) -> str:
    overrides = {
        "data.train_files": made / "train.parquet",
        "data.val_files": made / "test.parquet",
        "data.train_batch_size": BATCH,
        "data.max_prompt_length": 32,
        "data.max_response_length": LENGTH,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": made / "model",
        "actor_rollout_ref.rollout.n": GROUP,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4,
        "algorithm.adv_estimator": "grpo",
        "trainer.logger": "[console]",
        "trainer.n_gpus_per_node": 1,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.total_training_steps": steps,
        "trainer.balance_batch": False,
        "trainer.device": "cpu",
    }
    folder = Path(str(verl.__file__)).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(
            "ppo_trainer", [*(f"++{name}={value}" for name, value in overrides.items()), *others]
        )
    from verl.workers.reward_manager import NaiveRewardManager

    def share(solution_str: str, **_: object) -> float:
        return solution_str.count("7") + len(solution_str) / 100

    tokenizer = hf_tokenizer(str(made / "model"))
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    data = RLHFDataset(str(made / "train.parquet"), tokenizer, config.data)
    trainer = trainer_class(
        config,
        tokenizer,
        {Role.ActorRollout: None, Role.RefPolicy: None},
        Pool(),
        reward_fn=NaiveRewardManager(tokenizer, 0, share),
        train_dataset=data,
        val_dataset=data,
        collate_fn=collate_fn,
    )
    trainer.init_workers()
    try:
        trainer.fit()
    except RecomputedDifferenceError as error:
        return str(error)
    return ""


def init_workers(trainer: Any) -> None:
    trainer.async_rollout_mode = False
    trainer.actor_rollout_wg = trainer.ref_policy_wg = Workers()


if __name__ == "__main__":
    made, steps, *named = sys.argv[1:]
    place, *others = named or [f"{RayPPOTrainer.__module__}:RayPPOTrainer"]
    module, _, name = place.partition(":")
    trainer_class = getattr(importlib.import_module(module), name)
    RayPPOTrainer.init_workers = init_workers
    found = {}
    for name, edit in json.load(sys.stdin).items():
        with edited(*edit) if edit else nullcontext():
            found[name] = fit(trainer_class, Path(made), int(steps), others)
    print("\n" + json.dumps(found))
