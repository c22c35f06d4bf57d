"""Update a tiny policy by the workers and the loss of verl 0.8 and newer and print what came of it.

    python run_server_mode_on_policy.py JOB

On PYTHONPATH: the stand-ins for a CPU, and a tree with verl. JOB is JSON: `rows`, `mini`, `micro` (responses of the
batch, of a mini batch, of a micro batch), `epochs`, `loss` (verl's `loss_mode`), and `bypass`, which asks verl for
its bypass mode instead: "v0" by the trainer of 0.8, "v1" by that of 0.9 with TransferQueue. `update_actor`,
`train_mini_batch`, `ppo_loss` and both ways of the bypass are upstream's; the engine is a table of logits that keeps
its gradients. The old log-probabilities are off by up to 0.5, as by another kernel's rounding, only more. The output
is one line of JSON: the metrics, the gradient of each step and the policy gradient, by a formula of its own; or the
ValueError.
"""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.utils import tensordict_utils as tu
from verl.workers.config import McoreActorConfig, McoreOptimizerConfig, PolicyLossConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss

VOCABULARY, PROMPT, RESPONSE = 11, 3, 5


class Engine:
    """What `train_mini_batch` asks of an engine, and a step over micro batches that changes nothing."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))
        self.micro = job["micro"]
        self.steps: list[torch.Tensor] = []
        self.metrics: dict[str, list[float]] = {}
        config = McoreActorConfig(
            ppo_mini_batch_size=job["mini"], ppo_micro_batch_size_per_gpu=self.micro, ppo_epochs=job["epochs"],
            policy_loss=PolicyLossConfig(loss_mode=job["loss"]), optim=McoreOptimizerConfig(lr=1e-6), rollout_n=1,
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
        for part in tu.chunk_tensordict(data, data.shape[0] // self.micro):
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


def main(job: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(5)
    engine = Engine(job)
    data = _batch(engine.table, job["rows"])
    profiler = SimpleNamespace(step=lambda: None)
    worker = SimpleNamespace(engine=engine, train_batch=engine.train_batch, profiler=profiler)
    actor = SimpleNamespace(
        engine=engine, train_mini_batch=partial(inspect.unwrap(TrainingWorker.train_mini_batch), worker)
    )
    try:
        if job["bypass"]:
            bypass = {"v0": _bypass_v0, "v1": _bypass_v1}[job["bypass"]]
            return {"old is the rollout's": torch.equal(bypass(data["old_log_probs"]), data["old_log_probs"])}
        tu.assign_non_tensor(
            data, mini_batch_size=job["mini"], epochs=job["epochs"], seed=1, dataloader_kwargs={}
        )
        inspect.unwrap(ActorRolloutRefWorker.update_actor)(SimpleNamespace(actor=actor), data)
    except ValueError as error:
        return {"error": str(error), "steps": len(engine.steps)}
    return {
        "metrics": engine.metrics,
        "gradients": [step.tolist() for step in engine.steps],
        "policy gradient": _policy_gradient(engine.table, data).tolist(),
    }


def _bypass_v0(rollout: torch.Tensor) -> torch.Tensor:
    rows = DataProto.from_dict(tensors={"rollout_log_probs": rollout})
    apply_bypass_mode(rows, OmegaConf.create({"bypass_mode": True}), OmegaConf.create({}))
    return rows.batch["old_log_probs"]


def _bypass_v1(rollout: torch.Tensor) -> torch.Tensor:
    """Of TransferQueue, whose package is not needed here, there is one table in this process."""
    table = {"rollout_log_probs": rollout}
    queue: Any = ModuleType("transfer_queue")
    queue.KVBatchMeta = SimpleNamespace
    queue.kv_batch_get = lambda keys, partition_id, select_fields: {
        name: table[name] for name in select_fields
    }
    queue.kv_batch_put = lambda keys, partition_id, fields: table.update(fields)
    sys.modules["transfer_queue"] = queue
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    config = OmegaConf.create({"algorithm": {"rollout_correction": {"bypass_mode": True}}})
    batch = SimpleNamespace(keys=["a"] * len(rollout), partition_id="train")
    PPOTrainer._compute_old_log_prob(SimpleNamespace(config=config), batch, {})
    return table["old_log_probs"]


def _number(value: Any) -> float:
    found = value.aggregate() if hasattr(value, "aggregate") else value
    return float(found)


def _batch(table: torch.Tensor, rows: int) -> TensorDict:
    tokens = torch.randint(0, VOCABULARY, (rows, PROMPT + RESPONSE))
    mask = torch.ones(rows, RESPONSE, dtype=torch.long)
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
            "advantages": torch.randn(rows, RESPONSE),
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
    result = main(json.loads(sys.argv[1]))
    print("\n" + json.dumps(result))
