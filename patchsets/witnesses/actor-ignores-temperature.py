"""Compare the log-probabilities of verl's Megatron actor with those of the distribution that the rollout sampled.

The rollout samples from softmax(logits / T). The actor is the tree's own, verl_patches' where that replaces it, with
Megatron's schedule; its model is a table of logits. What is compared: `compute_log_prob` of a batch at T = 0.9 with
log_softmax(logits / 0.9), and `update_policy`, whose `ppo_kl` has to be 0 against these as the old log-probabilities.
verl divides since 5deb8cc9a (#3133).
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what verl and Megatron would compile computes the same without

import torch
import torch_npu.contrib.transfer_to_npu  # noqa: F401  what Megatron puts on "cuda" goes where the NPU stacks put it
from witness_common import (
    actor_batch,
    is_patched,
    logit_table,
    make_apex,
    make_module,
    megatron_actor,
    only_rank,
    show,
)

# The models: a table stands for them, and their imports want more packages.
mcore = make_module("verl.models.mcore")

from megatron.core import parallel_state  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

VOCABULARY, PROMPT, RESPONSE, ROWS, TEMPERATURE = 32, 3, 6, 8, 0.9
PATCHED = is_patched()
if PATCHED:
    import verl_patches.workers.actor.megatron_actor  # noqa: F401  replaces the methods of verl's

    make_apex()  # the recipe's Megatron imports it
    from verl_patches.workers import megatron_workers


def main() -> dict[str, Any]:
    parallel_state.initialize_model_parallel()
    torch.manual_seed(5)
    model = logit_table(VOCABULARY, scale=2)
    actor = _actor(model)
    tokens = torch.randint(0, VOCABULARY, (ROWS, PROMPT + RESPONSE))
    with torch.no_grad():
        for at in range(PROMPT, PROMPT + RESPONSE):
            logits = model(tokens[:, at - 1]) / TEMPERATURE
            tokens[:, at] = torch.distributions.Categorical(logits=logits).sample()
        sampled_from = (model(tokens[:, PROMPT - 1 : -1]) / TEMPERATURE).log_softmax(-1)
    expected = sampled_from.gather(-1, tokens[:, PROMPT:, None])[..., 0]
    found, entropy = actor.compute_log_prob(_batch(tokens, expected), calculate_entropy=True)
    own = -(sampled_from.exp() * sampled_from).sum(-1)
    kl = _update(actor, _batch(tokens, expected))
    apart = (found.exp() - expected.exp()).abs()
    return {
        "fault": bool(apart.max() > 1e-5 or abs(kl) > 1e-4 or (entropy - own).abs().max() > 1e-3),
        "mean |p_actor - p_sampled|": float(apart.mean()),
        "mean log-probability apart": float((found - expected).abs().mean()),
        "entropy apart": float((entropy - own).abs().mean()),
        "ppo_kl of the update, 0 expected": kl,
    }


def _actor(model: Any) -> Any:
    config = {
        "ppo_mini_batch_size": ROWS, "ppo_micro_batch_size_per_gpu": ROWS // 2, "ppo_epochs": 1, "shuffle": False,
        "data_loader_seed": 1, "use_kl_loss": False, "entropy_coeff": 0, "clip_ratio": 0.2, "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.2, "loss_agg_mode": "token-mean", "recompute_old_log_prob": True, "profiler": {},
        "profile": {"use_profile": False},
        "use_dynamic_bsz": False, "use_fused_kernels": False, "policy_loss": {"loss_mode": "vanilla"},
        "megatron": {"tensor_model_parallel_size": 1, "sequence_parallel": False},
    }  # fmt: skip
    optimizer = SimpleNamespace(
        zero_grad=lambda: None, step=lambda: (True, 0.0, 0), param_groups=[{"lr": 0.0}]
    )
    return megatron_actor(mcore, model, optimizer, OmegaConf.create(config))


def _batch(tokens: torch.Tensor, old: torch.Tensor) -> Any:
    ones = torch.ones(ROWS, RESPONSE)
    return actor_batch(tokens, ones.long(), old, ones, temperature=TEMPERATURE, micro_batch_size=ROWS // 2)


def _update(actor: Any, data: Any) -> float:
    if not PATCHED:
        metrics = actor.update_policy(actor.make_minibatch_iterator(data))
    else:  # by the recipe's worker, in a batch that no trainer has put the temperature into
        del data.meta_info["temperature"]
        data.meta_info["global_token_num"] = [1]
        worker = SimpleNamespace(
            _is_actor=True, _is_offload_param=False, _is_offload_optimizer=False, actor=actor, world_size=1,
            flops_counter=SimpleNamespace(estimate_flops=lambda *_: (0.0, 1.0)), config=OmegaConf.create({
                "actor": {"ppo_micro_batch_size_per_gpu": ROWS // 2, "ppo_epochs": 1},
                "rollout": {"temperature": TEMPERATURE},
            }),
        )  # fmt: skip
        done = megatron_workers.actor_rollout_ref_worker_update_actor(worker, data)
        metrics = done.meta_info["metrics"]
    return float(torch.tensor(metrics["actor/ppo_kl"]).mean())


if __name__ == "__main__":
    with only_rank():
        show(main)
