"""A tiny transformers model, sharded like in verl's FSDP workers, for one step on gloo ranks.

The mesh, the sharding strategy and the wrapping policy are the tree's (verl/workers/fsdp_workers.py,
verl/utils/fsdp_utils.py). The worker around them is part of the level *train*.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

_VOCABULARY, _LENGTH, _SEQUENCES = 128, 16, 2

Step = Callable[[], dict[str, Any]]


def prepare(job: dict[str, Any]) -> tuple[Step, list[str]]:
    """Import the ranks' modules. Returns the function for one rank's step, and the replaced names."""
    workers: Any = importlib.import_module("verl.workers.fsdp_workers")
    utilities: Any = importlib.import_module("verl.utils.fsdp_utils")
    importlib.import_module(
        "transformers.models." + ("deepseek_v3" if job["model"]["latent_attention"] else "llama")
    )

    def step() -> dict[str, Any]:
        torch.manual_seed(1)
        mesh = workers.create_device_mesh(job["world"], job["train"]["shard"])
        if job["strategy"] == "fsdp2":
            model = _with_fsdp2(_model(job), mesh, utilities)
        else:
            model = _with_fsdp1(_model(job), mesh, workers, utilities)
        return {"mesh": list(mesh.shape), **_forward_backward(model)}

    return step, []


def _model(job: dict[str, Any]) -> Any:
    models: Any = importlib.import_module("transformers")
    sizes = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
    }
    if not job["model"]["latent_attention"]:
        kv_heads = min(job["model"]["kv_heads"], 4)
        return models.LlamaForCausalLM(models.LlamaConfig(num_key_value_heads=kv_heads, **sizes))
    latent = {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "rope_scaling": None,
    }
    return models.DeepseekV3ForCausalLM(models.DeepseekV3Config(**sizes, **latent))


def _with_fsdp1(model: Any, mesh: Any, workers: Any, utilities: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=utilities.get_fsdp_wrap_policy(module=model, config=None),
        sharding_strategy=workers.get_sharding_strategy(mesh),
        device_mesh=mesh,
        use_orig_params=False,
        device_id=torch.device("cpu"),
    )


def _with_fsdp2(model: Any, mesh: Any, utilities: Any) -> Any:
    utilities.apply_fsdp2(model, {"mesh": mesh, "reshard_after_forward": True}, {})
    return model


def _forward_backward(model: Any) -> dict[str, Any]:
    """Run one forward and backward pass, and return this rank's figures."""
    rank = torch.distributed.get_rank()
    tokens = torch.randint(
        0, _VOCABULARY, (_SEQUENCES, _LENGTH), generator=torch.Generator().manual_seed(rank)
    )
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    weights = list(model.named_parameters())
    local = [(name, _local_shard(weight), _local_shard(weight.grad)) for name, weight in weights]
    return {
        "parameters": sum(weight.numel() for _, weight, _ in local),
        "loss": loss.item(),
        "expected_loss": math.log(_VOCABULARY),
        # An expert without tokens rightly has no gradient, and a rank may have no shard of a small weight.
        "without_gradient": [
            name
            for name, weight, gradient in local
            if weight.numel() and ".experts." not in name and not _is_nonzero(gradient)
        ],
    }


def _local_shard(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _is_nonzero(gradient: Any) -> bool:
    return gradient is not None and bool(torch.isfinite(gradient).all()) and bool((gradient != 0).any())
