"""Load a router's bias into verl's Megatron actor, send it to a rollout, and count tokens that get other experts.

Megatron-core makes the bias bfloat16 with the rest of the model and float32 again in the first forward pass only
(megatron/core/transformer/moe/router.py:131@core_v0.12.1; from core_v0.14.0 on before loading, too); the rollout's
parameter is bfloat16 for good (vllm/model_executor/models/deepseek_v2.py:118@v0.9.1). Biases are 256 random numbers in
[offset, offset + 0.1]. Of each offset: "actor apart", the share of tokens that get other experts by the loaded bias
than by the checkpoint's, "rollout apart" by the rollout's than by the actor's after five updates of 0.001, and errors
but for an offset of all entries.

Real: verl's `get_model`, its loading of a dist checkpoint, its sharding manager with the converter of names,
Megatron-core's checkpoints, its TopKRouter, the only part that the model has, and its top-k; and vLLM's `grouped_topk`
where the tree has vLLM (else the rollout routes by Megatron-core's top-k). The rollout takes what is sent into a
bfloat16 parameter.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from npu_rl_rehearsal import missing_kernels
from witness_common import (
    layer_with_router,
    make_module,
    model_with_router,
    only_rank,
    router_groups,
    send_weights,
    show,
)

missing_kernels.install(Path.cwd())  # core 0.14 imports triton's at once
VLLM = importlib.util.find_spec("vllm") is not None
if not VLLM:  # Pai's is installed on its devices, not in its tree
    for name in ("verl.third_party.vllm", "verl.utils.vllm_utils"):
        make_module(name, LLM=None, parallel_state=None, patch_vllm_moe_model_weight_loader=None)
# A triton kernel that verl 0.5.0 imports at once.
make_module("verl.utils.kernel.linear_cross_entropy", linear_cross_entropy=None)

import verl.workers.sharding_manager.megatron_vllm as managers  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import serialization  # noqa: E402
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config  # noqa: E402
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess  # noqa: E402
from megatron.core.dist_checkpointing.strategies import torch as torch_dist  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from torch.distributed import checkpoint  # noqa: E402
from verl.models.mcore.weight_converter import McoreToHFWeightConverterDpskv3  # noqa: E402
from verl.utils.model import load_mcore_dist_weights  # noqa: E402

ENVIRONMENT = {"VLLM_VERSION": "0.9.1", "VLLM_USE_V1": "1", "VLLM_PLUGINS": "none"}

if VLLM:
    from vllm.model_executor.layers.fused_moe.fused_moe import grouped_topk

UPDATES, RATE = 5, 0.001  # of the bias, by `moe_router_bias_update_rate`
NAME = "model.layers.0.mlp.gate.e_score_correction_bias"
OFFSETS = (0.0, 1.0, 4.0, 14.0)


class Rollout:
    """Stand-in for vLLM's model with a router's bias."""

    def __init__(self, experts: int) -> None:
        self.bias = torch.zeros(experts, dtype=torch.bfloat16)
        self.sent = ""

    def load_weights(self, weights: Any) -> set[str]:
        loaded = dict(weights)
        self.sent = str(loaded[NAME].dtype)
        self.bias.copy_(loaded[NAME])  # vLLM's default_weight_loader
        return set(loaded)


def through(bias: list[float], folder: Path) -> dict[str, Any]:
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16,
        num_moe_experts=len(bias), moe_router_topk=1, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_load_balancing_type="none", moe_router_dtype="fp32",
        use_cpu_initialization=True, add_bias_linear=False,
    )  # fmt: skip
    saved = layer_with_router(config)
    saved.decoder.layers[0].mlp.router.expert_bias.copy_(torch.tensor(bias))
    folder.mkdir(parents=True)
    save(saved.sharded_state_dict(), folder)

    actor, router = model_with_router(config)
    load_mcore_dist_weights(actor, str(folder))
    rollout = Rollout(len(bias))
    send(actor, config, rollout)
    router(torch.zeros(1, 1, 8, dtype=torch.bfloat16))
    found = {
        "sent": rollout.sent, "actor error": error(router.expert_bias.tolist(), bias),
        "rollout error": error(rollout.bias.tolist(), bias), "rollout's smallest": float(rollout.bias.min()),
    }  # fmt: skip
    found["actor apart"] = apart(of_megatron(router.expert_bias), of_megatron(torch.tensor(bias)))
    router.expert_bias += UPDATES * RATE * torch.arange(len(bias)).remainder(2).mul(2).sub(1)
    send(actor, config, rollout)
    found["rollout apart"] = apart(of_vllm(rollout.bias), of_megatron(router.expert_bias))
    return found


def error(found: list[float], bias: list[float]) -> float:
    """Return the largest difference, not counting an offset common to all entries."""
    differences = [a - b for a, b in zip(found, bias, strict=True)]
    return (max(differences) - min(differences)) / 2


def save(state: dict[str, Any], folder: Path) -> None:
    """Save like `dist_checkpointing.save`@core_v0.12.1, but have torch write the files.

    Megatron-core calls a torch function that has since gained an argument.
    """
    sharded, common = save_preprocess(state)
    by_key, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded, True)
    planner = torch_dist.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
    writer = checkpoint.FileSystemWriter(folder, per_thread_copy_ahead=0)
    checkpoint.save(torch_dist.mcore_to_pyt_state_dict(by_key), storage_writer=writer, planner=planner)
    serialization.get_default_save_common_strategy().save_common(common, folder)
    save_config(CheckpointingConfig("torch_dist", 1), str(folder))


def logits() -> torch.Tensor:
    return torch.randn(2048, 256, generator=torch.Generator().manual_seed(0))


def of_megatron(bias: torch.Tensor) -> torch.Tensor:
    """Return the experts of each token as a bool tensor [tokens, experts]."""
    route = getattr(moe_utils, "topk_softmax_with_capacity", None)
    route = route or moe_utils.topk_routing_with_score_function  # its name in Pai's Megatron-LM-250908
    _, chosen, *_ = route(logits(), 8, num_groups=8, group_topk=4, score_function="sigmoid", expert_bias=bias)
    return chosen  # type: ignore[no-any-return]


def of_vllm(bias: torch.Tensor) -> torch.Tensor:
    if not VLLM:
        return of_megatron(bias.float())
    _, chosen = grouped_topk.__wrapped__(
        logits(), logits(), 8, True, num_expert_group=8, topk_group=4, scoring_func="sigmoid",
        e_score_correction_bias=bias,
    )  # fmt: skip
    return torch.zeros(2048, 256, dtype=torch.bool).scatter(1, chosen.long(), True)


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one != other).any(-1).float().mean())


def send(actor: Any, config: Any, rollout: Rollout) -> None:
    send_weights(
        managers.MegatronVLLMShardingManager, McoreToHFWeightConverterDpskv3, inference_engine=None,
        model_runner=SimpleNamespace(model=rollout), rollout_config=SimpleNamespace(free_cache_engine=False),
        actor_module=actor, offload_param=False, device_mesh=None, bridge=None, transformer_config=config,
    )  # fmt: skip


def main(folder: Path) -> dict[str, Any]:
    torch.cuda.current_device = lambda: torch.device("cpu")  # where the router computes
    managers.aggressive_empty_cache = lambda **_: None
    try:
        loaders: Any = importlib.import_module("verl.utils.vllm.patch")
    except ModuleNotFoundError:  # before verl 0.5
        loaders = managers
    loaders.patch_vllm_moe_model_weight_loader = lambda model: None
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    if router_groups():
        missing_kernels.without_te_gemm()
    found = {}
    for offset in OFFSETS:
        numbers = random.Random(0)
        bias = [offset + 0.1 * numbers.random() for _ in range(256)]
        found[str(offset)] = through(bias, folder / str(offset))
    wrong = any(one["actor apart"] > 0 or one["rollout apart"] > 0.05 for one in found.values())
    return {"fault": wrong, "routed by": "vLLM" if VLLM else "Megatron-core", "offsets": found}


if __name__ == "__main__":
    with only_rank(), tempfile.TemporaryDirectory() as scratch:
        show(lambda: main(Path(scratch)))
