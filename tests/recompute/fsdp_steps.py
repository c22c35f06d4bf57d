"""Steps of verl's FSDP actor in one process, without Ray: `fsdp_steps.py JOB`, run in a tree's code folder."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

import planted_steps
import torch
from omegaconf import OmegaConf

DEFAULTS: dict[str, Any] = {
    "seed": 1, "steps": 2, "rows": 32, "mini": 8, "micro": 4, "lr": 0.05, "temperature": 0.9, "entropy": 0.01,
    "kl": 0.1, "low": 0.2, "high": 0.28, "mode": "token-mean", "kl_kind": "low_var_kl", "dynamic": False, "driver": "",
}  # fmt: skip
PROMPT, RESPONSE, VOCABULARY = 5, 9, 64
ACTOR, LOSSES = "verl.workers.actor.dp_actor", "verl.trainer.ppo.core_algos"


def config_of(job: dict[str, Any]) -> Any:
    return OmegaConf.create(
        {
            "ppo_mini_batch_size": job["mini"], "ppo_micro_batch_size_per_gpu": job["micro"], "ppo_epochs": 1,
            "ppo_max_token_len_per_gpu": 3 * (PROMPT + RESPONSE), "use_dynamic_bsz": job["dynamic"],
            "use_kl_loss": job["kl"] != 0, "kl_loss_coef": job["kl"], "kl_loss_type": job["kl_kind"],
            "entropy_coeff": job["entropy"], "clip_ratio": 0.2, "clip_ratio_low": job["low"],
            "clip_ratio_high": job["high"], "clip_ratio_c": 3.0, "loss_agg_mode": job["mode"],
            "policy_loss": {"loss_mode": "vanilla"}, "grad_clip": 1.0, "ulysses_sequence_parallel_size": 1,
            "entropy_from_logits_with_chunking": False,
            "entropy_checkpointing": False, "use_torch_compile": False, "shuffle": False, "data_loader_seed": 1,
        }
    )  # fmt: skip


def batch_of(numbers: torch.Generator, rows: int) -> dict[str, torch.Tensor]:
    """Random tokens, prompts padded on the left and responses of unequal lengths on the right."""
    tokens = torch.randint(2, VOCABULARY, (rows, PROMPT + RESPONSE), generator=numbers)
    places = torch.arange(PROMPT + RESPONSE)
    begins = torch.randint(0, PROMPT - 1, (rows, 1), generator=numbers)
    ends = PROMPT + torch.randint(1, RESPONSE + 1, (rows, 1), generator=numbers)
    attention = ((places >= begins) & (places < ends)).long()
    tokens = tokens * attention
    advantages = torch.randn(rows, 1, generator=numbers)
    return {
        "input_ids": tokens, "responses": tokens[:, PROMPT:].clone(), "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0), "response_mask": attention[:, PROMPT:].clone(),
        "advantages": advantages * attention[:, PROMPT:],
    }  # fmt: skip


def tiny_model() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return Qwen2ForCausalLM(
        Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, attn_implementation="eager", **sizes)
    )


def train(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return verl's metrics of each step."""
    from verl import DataProto

    actor_class = sys.modules[ACTOR].DataParallelPPOActor
    torch.manual_seed(job["seed"])
    model = tiny_model()
    config = config_of(job)
    reference = actor_class(config, copy.deepcopy(model))
    actor = actor_class(config, model, torch.optim.AdamW(model.parameters(), lr=job["lr"]))
    numbers = torch.Generator().manual_seed(job["seed"])
    facts = {"temperature": job["temperature"], "micro_batch_size": 8, "use_dynamic_bsz": False}
    found = []
    for step in range(1, job["steps"] + 1):
        data = DataProto.from_dict(
            tensors=batch_of(numbers, job["rows"]), meta_info={**facts, "global_steps": step}
        )
        data.batch["old_log_probs"] = actor.compute_log_prob(data)[0]
        data.batch["ref_log_prob"] = reference.compute_log_prob(data)[0]
        exec(job["driver"], {"data": data, "torch": torch})
        found.append(actor.update_policy(data))
    return found


importlib.import_module(ACTOR)
importlib.import_module("transformers.models.qwen2.modeling_qwen2")
if __name__ == "__main__":
    planted_steps.run([LOSSES, ACTOR], DEFAULTS, train)
