"""verl's old log-probabilities come from another computation than the update's, so an on-policy ratio is not 1.

Called is MegatronPPOActor.update_policy (verl/workers/actor/megatron_actor.py@55e3c5b) with Megatron's schedule, on a
table of logits whose optimizer only keeps the gradients, with the adaptation on. The old log-probabilities are off by
up to 0.5, as by another kernel's rounding, only more. "one step" and "gspo" are whether ppo_kl and pg_clipfrac are 0
and the gradient is the policy gradient, by a formula of its own; "refused" is whether more than one step a batch is,
which needs true old log-probabilities.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("NPU_RL_ON_POLICY_LOGPROB", "1")

import torch
import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where MindSpeed puts it
import verl.models.mcore
from megatron.core import parallel_state
from verl.workers.config import McoreActorConfig, McoreOptimizerConfig, PolicyLossConfig
from witness_common import actor_batch, logit_table, megatron_actor, only_rank, show

STAND_INS = ("npu",)
VOCABULARY, PROMPT, RESPONSE = 11, 3, 5
ONE_STEP = {"rows": 4, "mini": 4, "micro": 2, "epochs": 1, "loss": "vanilla"}


class Gradients:
    """An optimizer that keeps each step's gradient and changes nothing."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.steps: list[torch.Tensor] = []

    def zero_grad(self) -> None:
        self.model.table.grad = None

    def step(self) -> tuple[bool, float, int]:
        assert self.model.table.grad is not None
        self.steps.append(self.model.table.grad.clone())
        return True, 0.0, 0


def main() -> dict[str, Any]:
    parallel_state.initialize_model_parallel()
    found = {
        "one step": is_on_policy(ONE_STEP),
        # A ratio per response: with one of them per micro batch its mean is that of the formula.
        "gspo": is_on_policy(ONE_STEP | {"loss": "gspo", "micro": 1}),
        "refused": [is_refused(ONE_STEP | {"mini": 2}), is_refused(ONE_STEP | {"epochs": 2})],
    }
    return {"fault": not all([found["one step"], found["gspo"], *found["refused"]]), **found}


def is_on_policy(job: dict[str, Any]) -> bool:
    metrics, steps, wanted = update(job)
    zero = all(not any(one) for name in ("ppo_kl", "pg_clipfrac") for one in metrics[f"actor/{name}"])
    return zero and len(steps) == 1 and torch.allclose(steps[0], wanted, rtol=1e-4, atol=1e-6)


def is_refused(job: dict[str, Any]) -> bool:
    try:
        update(job)
    except ValueError as error:
        return "NPU_RL_ON_POLICY_LOGPROB" in str(error)
    return False


def update(job: dict[str, Any]) -> tuple[dict[str, Any], list[torch.Tensor], torch.Tensor]:
    """Return the metrics, the gradient of each step, and the policy gradient of the whole batch."""
    torch.manual_seed(5)
    model = logit_table(VOCABULARY)
    optimizer = Gradients(model)
    actor = _actor(model, optimizer, job)
    data = _batch(model, job["rows"])
    metrics = actor.update_policy(actor.make_minibatch_iterator(data))
    return metrics, optimizer.steps, _policy_gradient(model, data, job["micro"])


def _actor(model: Any, optimizer: Gradients, job: dict[str, Any]) -> Any:
    config = McoreActorConfig(
        ppo_mini_batch_size=job["mini"],
        ppo_micro_batch_size_per_gpu=job["micro"],
        ppo_epochs=job["epochs"],
        policy_loss=PolicyLossConfig(loss_mode=job["loss"]),
        optim=McoreOptimizerConfig(lr=1e-6),
    )
    return megatron_actor(verl.models.mcore, model, optimizer, config)


def _batch(model: Any, rows: int) -> Any:
    tokens = torch.randint(0, VOCABULARY, (rows, PROMPT + RESPONSE))
    mask = torch.ones(rows, RESPONSE, dtype=torch.long)
    mask[::2, -2:] = 0
    exact = _log_prob(model, tokens).detach()
    old = exact + torch.rand_like(exact) - 0.5
    return actor_batch(tokens, mask, old, torch.randn(rows, RESPONSE), temperature=1.0)


def _log_prob(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    found = model(tokens[:, PROMPT - 1 : -1]).log_softmax(-1)
    return torch.gather(found, -1, tokens[:, PROMPT:, None])[..., 0]


def _policy_gradient(model: Any, data: Any, micro: int) -> torch.Tensor:
    """Of -advantage * log-probability: the mean over a micro batch's tokens, then over the micro batches."""
    losses = []
    for part in data.batch.split(micro):
        each = -part["advantages"] * _log_prob(model, part["input_ids"])
        losses.append((each * part["response_mask"]).sum() / part["response_mask"].sum())
    (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), model.table)
    return gradient


if __name__ == "__main__":
    with only_rank():
        show(main)
