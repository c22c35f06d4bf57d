"""Steps of a tree's Megatron actor in one process, on a table of logits: `megatron_steps.py JOB`, in the code folder.

As `fsdp_steps.py`, for verl's actor and, where the tree has it, that of cann-recipes-train, with Megatron's schedule.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import planted_steps
import torch
import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where MindSpeed puts it
from witness_common import actor_batch, is_patched, logit_table, make_module, megatron_actor

# The models: a table stands for them, and their imports want more packages.
mcore = make_module("verl.models.mcore")

from megatron.core import parallel_state  # noqa: E402
from npu_rl_recompute.loss_hooks import MEGATRON  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

DEFAULTS: dict[str, Any] = {
    "seed": 1, "steps": 2, "rows": 32, "mini": 8, "micro": 4, "lr": 0.3, "temperature": 0.9, "entropy": 0.01, "kl": 0.1,
    "driver": "",
}  # fmt: skip
PROMPT, RESPONSE, VOCABULARY = 3, 7, 16
PATCHED = is_patched()
MODULES = ["verl.trainer.ppo.core_algos", *(MEGATRON if PATCHED else MEGATRON[:1])]


def config_of(job: dict[str, Any], *, recomputes: bool) -> Any:
    return OmegaConf.create(
        {
            "ppo_mini_batch_size": job["mini"], "ppo_micro_batch_size_per_gpu": job["micro"], "ppo_epochs": 1,
            "shuffle": False, "data_loader_seed": 1, "use_kl_loss": True, "kl_loss_coef": job["kl"],
            "kl_loss_type": "low_var_kl", "entropy_coeff": 0 if PATCHED else job["entropy"], "clip_ratio": 0.2,
            "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean",
            "recompute_old_log_prob": recomputes, "profiler": {}, "profile": {"use_profile": False},
            "use_dynamic_bsz": False, "use_fused_kernels": False, "policy_loss": {"loss_mode": "vanilla"},
            "megatron": {"tensor_model_parallel_size": 1, "sequence_parallel": False},
        }
    )  # fmt: skip


class Optimizer:
    """Plain gradient descent under the names of Megatron's optimizer."""

    def __init__(self, model: Any, rate: float) -> None:
        self.model, self.param_groups = model, [{"lr": rate}]

    def zero_grad(self) -> None:
        self.model.table.grad = None

    def step(self) -> tuple[bool, float, int]:
        gradient = self.model.table.grad
        self.model.table.data -= self.param_groups[0]["lr"] * gradient / gradient.abs().max()
        return True, float(gradient.norm()), 0


def train(job: dict[str, Any]) -> list[dict[str, Any]]:
    parallel_state.initialize_model_parallel()
    torch.manual_seed(job["seed"])
    model, original = logit_table(VOCABULARY), logit_table(VOCABULARY)
    original.load_state_dict(model.state_dict())
    config = config_of(job, recomputes=not PATCHED)
    actor = megatron_actor(mcore, model, Optimizer(model, job["lr"]), config)
    reference = megatron_actor(mcore, original, None, config_of(job, recomputes=True))
    found = []
    for step in range(1, job["steps"] + 1):
        tokens = torch.randint(0, VOCABULARY, (job["rows"], PROMPT + RESPONSE))
        ends = torch.randint(1, RESPONSE + 1, (job["rows"], 1))
        mask = (torch.arange(RESPONSE) < ends).long()
        advantages = torch.randn(job["rows"], 1) * mask
        facts = {"temperature": job["temperature"], "micro_batch_size": job["micro"], "global_steps": step}
        data = actor_batch(tokens, mask, torch.zeros(mask.shape), advantages, **facts)
        if PATCHED:  # it has none
            del data.batch["old_log_probs"]
        else:
            data.batch["old_log_probs"] = actor.compute_log_prob(data)[0]
        data.batch["ref_log_prob"] = reference.compute_log_prob(data)[0]
        exec(job["driver"], {"data": data})
        found.append(actor.update_policy(actor.make_minibatch_iterator(data)))
    return found


for name in MODULES[1:]:
    importlib.import_module(name)
planted_steps.run(MODULES, DEFAULTS, train)
