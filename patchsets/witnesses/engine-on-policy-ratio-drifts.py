"""In verl's engine workers, too, the ratio of an on-policy update is not 1.

Called are update_actor, train_mini_batch and ppo_loss (verl/workers/engine_workers.py@7aed6b2), on an engine that is a
table of logits and keeps its gradients, with the adaptation on. The old log-probabilities are off by up to 0.5, as by
another kernel's rounding, only more. "one step" is whether ppo_kl and pg_clipfrac are 0 and the gradient is the policy
gradient, by a formula of its own; "refused" whether several steps a batch are, and verl's bypass mode, by the trainer
of 0.8 and, where the tree has it, that of 0.9 with TransferQueue.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("NPU_RL_ON_POLICY_LOGPROB", "1")

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.utils import tensordict_utils as tu
from verl.workers.config import McoreActorConfig, McoreOptimizerConfig, PolicyLossConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss
from witness_common import make_module, show

STAND_INS = ("npu",)
VOCABULARY, PROMPT, RESPONSE = 11, 3, 5
ROWS, MICRO = 4, 2  # responses of a batch and of a micro batch


class Engine:
    """What `train_mini_batch` asks of an engine, and a step over micro batches that changes nothing."""

    def __init__(self, mini: int, epochs: int) -> None:
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))
        self.steps: list[torch.Tensor] = []
        self.metrics: dict[str, list[float]] = {}
        config = McoreActorConfig(
            ppo_mini_batch_size=mini, ppo_micro_batch_size_per_gpu=MICRO, ppo_epochs=epochs,
            policy_loss=PolicyLossConfig(loss_mode="vanilla"), optim=McoreOptimizerConfig(lr=1e-6), rollout_n=1,
        )  # fmt: skip
        self.loss = partial(ppo_loss, config=config)

    def train_mode(self, **_: Any) -> Any:
        return nullcontext()

    def get_data_parallel_size(self) -> int:
        return 1

    def get_data_parallel_rank(self) -> int:
        return 0

    def is_mp_src_rank_with_outputs(self) -> bool:
        return False

    def train_batch(self, data: TensorDict) -> None:
        self.table.grad = None
        for part in tu.chunk_tensordict(data, data.shape[0] // MICRO):
            tokens = torch.cat([part["prompts"], part["responses"]], 1)
            each = _log_prob(self.table, tokens)
            flat = torch.cat([each, torch.zeros(len(each), 1)], 1)[part["attention_mask"].bool()]
            values = {"dp_size": 1, "batch_num_tokens": data["response_mask"].sum().item()}
            tu.assign_non_tensor(part, global_batch_size=data.shape[0], **values)
            loss, metrics = self.loss(model_output={"log_probs": flat}, data=part)
            loss.backward()
            for name, value in metrics.items():
                self.metrics.setdefault(name.removeprefix("actor/"), []).append(_number(value))
        assert self.table.grad is not None
        self.steps.append(self.table.grad.clone())


def main() -> dict[str, Any]:
    engine, data = update()
    zero = not any(engine.metrics["ppo_kl"]) and not any(engine.metrics["pg_clipfrac"])
    wanted = _policy_gradient(engine.table, data)
    one_step = (
        zero and len(engine.steps) == 1 and torch.allclose(engine.steps[0], wanted, rtol=1e-4, atol=1e-6)
    )
    refused = {
        "mini batch": is_refused(update, mini=2),
        "epochs": is_refused(update, epochs=2),
        "bypass of 0.8": is_refused(_bypass_v0, data["old_log_probs"]),
    }
    if Path("verl/trainer/ppo/v1/trainer_base.py").is_file():
        refused["bypass of 0.9"] = is_refused(_bypass_v1, data["old_log_probs"])
    return {"fault": not (one_step and all(refused.values())), "one step": one_step, "refused": refused}


def is_refused(call: Callable[..., object], *arguments: Any, **named: Any) -> bool:
    try:
        call(*arguments, **named)
    except ValueError as error:
        return "NPU_RL_ON_POLICY_LOGPROB" in str(error)
    return False


def update(mini: int = ROWS, epochs: int = 1) -> tuple[Engine, TensorDict]:
    torch.manual_seed(5)
    engine = Engine(mini, epochs)
    data = _batch(engine.table)
    worker = SimpleNamespace(
        engine=engine, train_batch=engine.train_batch, profiler=SimpleNamespace(step=lambda: None)
    )
    train = partial(inspect.unwrap(TrainingWorker.train_mini_batch), worker)
    tu.assign_non_tensor(data, mini_batch_size=mini, epochs=epochs, seed=1, dataloader_kwargs={})
    actor = SimpleNamespace(engine=engine, train_mini_batch=train)
    inspect.unwrap(ActorRolloutRefWorker.update_actor)(SimpleNamespace(actor=actor), data)
    return engine, data


def _bypass_v0(rollout: torch.Tensor) -> None:
    rows = DataProto.from_dict(tensors={"rollout_log_probs": rollout})
    apply_bypass_mode(rows, OmegaConf.create({"bypass_mode": True}), OmegaConf.create({}))


def _bypass_v1(rollout: torch.Tensor) -> None:
    """Of TransferQueue, whose package is not needed here, there is one table in this process."""
    table = {"rollout_log_probs": rollout}
    make_module(
        "transfer_queue", KVBatchMeta=SimpleNamespace,
        kv_batch_get=lambda keys, partition_id, select_fields: {name: table[name] for name in select_fields},
        kv_batch_put=lambda keys, partition_id, fields: table.update(fields),
    )  # fmt: skip
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    config = OmegaConf.create({"algorithm": {"rollout_correction": {"bypass_mode": True}}})
    batch = SimpleNamespace(keys=["a"] * len(rollout), partition_id="train")
    PPOTrainer._compute_old_log_prob(SimpleNamespace(config=config), batch, {})


def _number(value: Any) -> float:
    found = value.aggregate() if hasattr(value, "aggregate") else value
    return float(found)


def _batch(table: torch.Tensor) -> TensorDict:
    tokens = torch.randint(0, VOCABULARY, (ROWS, PROMPT + RESPONSE))
    mask = torch.ones(ROWS, RESPONSE, dtype=torch.long)
    mask[::2, -2:] = 0
    attention = torch.ones_like(tokens)
    attention[:, PROMPT:] = mask
    exact = _log_prob(table, tokens)[:, PROMPT - 1 :].detach()
    return tu.get_tensordict(
        {
            "prompts": tokens[:, :PROMPT].clone(),
            "responses": tokens[:, PROMPT:].clone(),
            "attention_mask": attention,
            "response_mask": mask,
            "old_log_probs": exact + torch.rand_like(exact) - 0.5,
            "advantages": torch.randn(ROWS, RESPONSE),
        }
    )


def _log_prob(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of each next token: [rows, tokens - 1]."""
    return torch.gather(table[tokens[:, :-1]].log_softmax(-1), -1, tokens[:, 1:, None])[..., 0]


def _policy_gradient(table: torch.Tensor, data: TensorDict) -> torch.Tensor:
    """Of -advantage * log-probability, as the mean over the batch's tokens."""
    tokens = torch.cat([data["prompts"], data["responses"]], 1)
    each = -data["advantages"] * _log_prob(table, tokens)[:, PROMPT - 1 :]
    mask = data["response_mask"]
    (gradient,) = torch.autograd.grad((each * mask).sum() / mask.sum(), table)
    return gradient


if __name__ == "__main__":
    show(main)
