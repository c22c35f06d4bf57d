"""verl's old log-probabilities come from another computation than the update's, so an on-policy ratio is not 1.

Called is MegatronPPOActor.update_policy (verl/workers/actor/megatron_actor.py@55e3c5b) with Megatron's schedule, on a
table of logits whose optimizer only keeps the gradients, with the adaptation on. The old log-probabilities are off by
up to 0.5, as by another kernel's rounding, only more. "one step" and "gspo" are whether ppo_kl and pg_clipfrac are 0
and the gradient is the policy gradient, by a formula of its own; "refused" is whether more than one step a batch is,
which needs true old log-probabilities.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("NPU_RL_ON_POLICY_LOGPROB", "1")

import torch
import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where MindSpeed puts it
import verl.models.mcore
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.transformer.transformer_config import TransformerConfig
from verl import DataProto
from verl.workers.actor.megatron_actor import MegatronPPOActor
from verl.workers.config import McoreActorConfig, McoreOptimizerConfig, PolicyLossConfig
from witness_common import only_rank, show

STAND_INS = ("npu",)
VOCABULARY, PROMPT, RESPONSE = 11, 3, 5
ONE_STEP = {"rows": 4, "mini": 4, "micro": 2, "epochs": 1, "loss": "vanilla"}


class Table(torch.nn.Module):
    """Logits of the next token by the token: what Megatron's schedule and verl's actor ask of a model."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self) -> None:
        super().__init__()
        self.config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]

    def set_input_tensor(self, tensor: Any) -> None: ...
    def zero_grad_buffer(self) -> None: ...


class Gradients:
    """An optimizer that keeps each step's gradient and changes nothing."""

    def __init__(self, model: Table) -> None:
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
    model = Table()
    optimizer = Gradients(model)
    actor = _actor(model, optimizer, job)
    data = _batch(model, job["rows"])
    metrics = actor.update_policy(actor.make_minibatch_iterator(data))
    return metrics, optimizer.steps, _policy_gradient(model, data, job["micro"])


def _actor(model: Table, optimizer: Gradients, job: dict[str, Any]) -> MegatronPPOActor:
    def forward(model: Table, tokens: torch.Tensor, *rest: Any, logits_processor: Any, **given: Any) -> Any:
        return logits_processor(model(tokens), **given["logits_processor_args"])

    verl.models.mcore.get_mcore_forward_fn = lambda config: forward
    config = McoreActorConfig(
        ppo_mini_batch_size=job["mini"],
        ppo_micro_batch_size_per_gpu=job["micro"],
        ppo_epochs=job["epochs"],
        policy_loss=PolicyLossConfig(loss_mode=job["loss"]),
        optim=McoreOptimizerConfig(lr=1e-6),
    )
    parts = {"model_config": None, "hf_config": None, "tf_config": SimpleNamespace(sequence_parallel=False)}
    actor = MegatronPPOActor(config=config, actor_module=[model], actor_optimizer=optimizer, **parts)
    model.config.finalize_model_grads_func = (
        None  # it would reduce over the wrapper of Megatron's data parallel
    )
    return actor


def _batch(model: Table, rows: int) -> DataProto:
    tokens = torch.randint(0, VOCABULARY, (rows, PROMPT + RESPONSE))
    mask = torch.ones(rows, RESPONSE, dtype=torch.long)
    mask[::2, -2:] = 0
    everything = torch.ones_like(tokens)
    everything[:, PROMPT:] = mask
    exact = _log_prob(model, tokens).detach()
    return DataProto.from_dict(
        tensors={
            "responses": tokens[:, PROMPT:].clone(),
            "input_ids": tokens,
            "attention_mask": everything,
            "response_mask": mask,
            "position_ids": torch.arange(PROMPT + RESPONSE).expand(rows, -1).clone(),
            "old_log_probs": exact + torch.rand_like(exact) - 0.5,
            "advantages": torch.randn(rows, RESPONSE),
        },
        meta_info={"temperature": 1.0},  # as the worker that computed old_log_probs has it
    )


def _log_prob(model: Table, tokens: torch.Tensor) -> torch.Tensor:
    found = model(tokens[:, PROMPT - 1 : -1]).log_softmax(-1)
    return torch.gather(found, -1, tokens[:, PROMPT:, None])[..., 0]


def _policy_gradient(model: Table, data: DataProto, micro: int) -> torch.Tensor:
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
