"""Show whether the router's bias stays float32 in the actor, and whether the rollout can tell its entries apart.

DeepSeek-V3's bias decides between scores that are close together, and training moves it by 0.001 a step. MindSpeed-LLM
v2.0.0 registers it as float32 (core/transformer/moe/router.py:378) and Megatron-core's Float16Module makes it bfloat16,
whose steps near 4 are 1/64; the rollout's is bfloat16, too (vllm_ascend/models/deepseek_v2.py:328@f20869e).

Real, of cann-recipes-train's tree: verl's get_model with Float16Module, MindSpeed-LLM's router with its routing and
its update of the bias, loading and saving by state_dict as verl's legacy checkpoints do it, and the recipe's sharding
manager with its generator and converter. The model is one router; the rollout is its bfloat16 parameter.
"""

from __future__ import annotations

import contextlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

for name in ("", ".core", ".core.transformer", ".core.transformer.moe", ".core.distributed", ".tasks", ".tasks.models",
             ".tasks.models.common"):  # without their __init__, which import everything  # fmt: skip
    package: Any = ModuleType(f"mindspeed_llm{name}")
    package.__path__ = [package.__name__.replace(".", "/")]
    sys.modules[package.__name__] = package

import megatron.training.global_vars as training  # noqa: E402
import verl_patches.verl_adaptor  # noqa: E402, F401  puts the recipe's functions into verl
import verl_patches.workers.sharding_manager.megatron_vllm as managers  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402
from megatron.core.transformer.moe.router import TopKRouter  # noqa: E402
from mindspeed_llm.core.distributed.finalize_model_grads import _update_router_expert_bias  # noqa: E402
from mindspeed_llm.core.transformer.moe import moe_utils, router  # noqa: E402
from verl.utils import megatron_utils  # noqa: E402
from verl_patches.models.mcore.weight_converter import McoreToHFWeightConverterDeepseekV3  # noqa: E402

EXPERTS, RATE, OFFSET = 256, 0.001, 4.0
PLACE, SENT = "decoder.layers.0.mlp.router.expert_bias", "model.layers.0.mlp.gate.e_score_correction_bias"
ARGS = SimpleNamespace(
    n_group=8, topk_group=4, norm_topk_prob=True, routed_scaling_factor=2.5, moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True, moe_router_bias_update_rate=RATE, moe_tp_extend_ep=True, seq_aux=False,
    fix_router=False, input_jitter=False, router_gating_in_fp32=False, micro_batch_size=1,
)  # fmt: skip


class Model(MegatronModule):  # type: ignore[misc]
    """One layer of a mixture of experts, without experts."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        layer: Any = torch.nn.Module()
        layer.mlp = torch.nn.Module()
        layer.mlp.router = TopKRouter(config)
        self.decoder: Any = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList([layer])


class Rollout:
    """vLLM's model, as far as it has a router's bias; `copy_` is its default_weight_loader."""

    model = SimpleNamespace(layers=[SimpleNamespace(self_attn=None)])

    def load_weights(self, weights: Any) -> set[str]:
        loaded = dict(weights)
        self.bias = torch.zeros(EXPERTS, dtype=torch.bfloat16).copy_(loaded[SENT])
        return set(loaded)


def chosen(bias: torch.Tensor) -> torch.Tensor:
    """The experts of 2,048 tokens, by MindSpeed-LLM's routing on float32 scores."""
    logits = torch.randn(2048, EXPERTS, generator=torch.Generator().manual_seed(0))
    _, found, _ = moe_utils.topk_softmax_with_capacity(
        logits, 8, num_groups=8, group_topk=4, score_function="sigmoid", expert_bias=bias
    )
    return found.sort(-1).values


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return round(float((chosen(one) != chosen(other)).any(-1).float().mean()), 3)


def send(actor: Any, config: Any, rollout: Rollout) -> None:
    nothing = SimpleNamespace(
        **dict.fromkeys(("onload_model_weights", "free_cache_engine", "offload_model_weights"), int)
    )
    one = managers.MegatronVLLMShardingManager.__new__(managers.MegatronVLLMShardingManager)
    one.actor_module, one.rollout, one.rollout_model, one.transformer_config = actor, nothing, rollout, config
    one.model_config = SimpleNamespace(tie_word_embeddings=False)
    one.layer_name_mapping = {
        "qkv_layer_name": "self_attention.linear_qkv.",
        "gate_proj_layer_name": "linear_fc1.",
    }
    one.weight_converter = McoreToHFWeightConverterDeepseekV3(SimpleNamespace(), config)
    with one:
        pass


def main() -> dict[str, Any]:
    histc = torch.histc  # on a CPU it takes no whole numbers
    torch.histc = lambda values, **named: histc(values.float(), **named).long()
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.reset_peak_memory_stats = torch.cuda.empty_cache = lambda *_: None
    torch.cuda.max_memory_allocated = lambda *_: 0
    managers.print_memory = managers.patch_vllm_moe_model_weight_loader = lambda *_: None
    parallel_state.initialize_model_parallel()
    training._GLOBAL_ARGS = ARGS
    TopKRouter.__init__ = router.topk_router_init_wrapper(TopKRouter.__init__)
    TopKRouter.routing, TopKRouter.forward = router.topk_router_routing, router.topk_router_forward
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16,
        num_moe_experts=EXPERTS, moe_router_topk=8, moe_router_load_balancing_type="none",
        use_cpu_initialization=True, add_bias_linear=False, finalize_model_grads_func=None,
    )  # fmt: skip
    config.num_layer_list, config.first_k_dense_replace = None, 1  # of the recipe's own class
    actor = megatron_utils.get_model(
        lambda **_: Model(config), wrap_with_ddp=False, transformer_config=config
    )
    model, rollout = megatron_utils.unwrap_model(actor[0]), Rollout()
    bias = OFFSET + 0.1 * torch.rand(EXPERTS, generator=torch.Generator().manual_seed(0))
    actor[0].load_state_dict({**actor[0].state_dict(), PLACE: bias})
    part = model.decoder.layers[0].mlp.router
    found = {"loaded apart": apart(part.expert_bias, bias)}
    for _ in range(5):
        before = part.expert_bias.float().clone()
        scores, _ = part(torch.randn(512, 1, 8, generator=torch.Generator().manual_seed(1)).bfloat16())
        _update_router_expert_bias(actor, config)
    moved = (part.expert_bias.float() - before).abs()
    found |= {
        "moved by the rate": round(float((moved - RATE).abs().lt(RATE / 10).float().mean()), 3),
        "scores": str(scores.dtype),
        "saved": str(actor[0].state_dict_for_save_checkpoint()[PLACE].dtype),
        "counter": str(part.local_tokens_per_expert.dtype),
    }
    send(actor, config, rollout)
    found["rollout apart"] = apart(rollout.bias.float(), part.expert_bias.float())
    return {"fault": found["loaded apart"] > 0 or found["rollout apart"] > 0.05, **found}


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
    dist.destroy_process_group()
