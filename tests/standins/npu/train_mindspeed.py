"""Trains a tiny DeepSeek-V3 (latent attention, mixture of experts) of Megatron-core with MindSpeed for a few steps.

Run by test_mindspeed.py in a process of its own, one rank on gloo, with the stand-in for torch_npu on PYTHONPATH.
Prints one line of JSON: the loss of each step and which classes MindSpeed put in place.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from mindspeed.megatron_adaptor import repatch

FUSED = dict.fromkeys(
    [
        "use_fused_swiglu",
        "use_fused_rotary_pos_emb",
        "moe_permute_fusion",
        "gemm_gradient_accumulation_fusion",
    ],
    "--fused" in sys.argv,
)
VOCABULARY, LENGTH, SEQUENCES, STEPS = 64, 16, 4, 12


def main() -> None:
    # As verl/workers/megatron_workers.py@55e3c5b does with the recipe's override_transformer_config.
    always = {"use_flash_attn": True, "multi_latent_attention": True, "moe_shared_expert_overlap": False}
    repatch(always | FUSED | {"swap_optimizer": "--swap" in sys.argv})
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=0, world_size=1
    )
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(1, 1)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    model, optimizer = _model_and_optimizer(torch.bfloat16 if "--bf16" in sys.argv else torch.float32)
    losses = [_step(model, optimizer) for _ in range(STEPS)]
    modules = sorted({type(module).__module__ for module in model.modules()})
    print(json.dumps({"losses": losses, "modules": modules, "named": _hugging_face_shapes(model)}))


def _hugging_face_shapes(model: Any) -> dict[str, Any]:
    """What the check of weight syncs reads of the model, and what it lacks or has too much."""
    from npu_rl_tensors.formats.boxes import extent
    from npu_rl_tensors.layouts.model_sizes import DEEPSEEK, ModelDims
    from npu_rl_tensors.layouts.name_tables import hf_shapes
    from npu_rl_weight_sync.megatron_tensors import tensors_of

    dims = ModelDims(
        DEEPSEEK, 2, 32, 4, VOCABULARY, 64, False, 1, moe_intermediate_size=32, num_experts=4, n_shared_experts=1,
        q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
    unknown: set[str] = set()
    parts = list(tensors_of([model], dims, unknown))
    assert all(part.values.shape == extent(part.box) for part in parts)
    names = [part.name for part in parts]
    return {
        "unknown": sorted(unknown),
        "twice": len(names) - len(set(names)),
        "missing": sorted({*hf_shapes(dims)} - {*names}),
    }


def _model_and_optimizer(dtype: torch.dtype) -> tuple[Any, Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module

    config = _config(dtype)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=True)
    model = GPTModel(config, spec, VOCABULARY, LENGTH, position_embedding_type="rope")
    if dtype != torch.float32:
        model = Float16Module(config, model)
    options = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    wrapped = DistributedDataParallel(config, options, model)
    bf16 = dtype == torch.bfloat16
    settings = OptimizerConfig(lr=1e-2, bf16=bf16, params_dtype=dtype, use_distributed_optimizer=True)
    return wrapped, get_megatron_optimizer(settings, [wrapped])


def _config(dtype: torch.dtype) -> Any:
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    return MLATransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=64,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_head_dim=8,
        qk_pos_emb_head_dim=8,
        v_head_dim=8,
        rope_type="rope",
        qk_layernorm=True,
        num_moe_experts=4,
        moe_ffn_hidden_size=32,
        moe_router_topk=2,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_load_balancing_type="none",
        moe_aux_loss_coeff=0.0,
        moe_layer_freq=[0, 1],
        moe_shared_expert_intermediate_size=32,
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=True,
        normalization="RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion="--fused" in sys.argv,
        moe_permute_fusion="--fused" in sys.argv,
        bias_activation_fusion=True,
    )


def _step(model: Any, optimizer: Any) -> float:
    tokens = torch.arange(SEQUENCES * LENGTH).view(SEQUENCES, LENGTH) % VOCABULARY
    positions = torch.arange(LENGTH).expand(SEQUENCES, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    model.zero_grad_buffer()
    optimizer.zero_grad()
    labels = tokens.roll(-1, 1)
    loss = model(tokens, positions, mask, labels=labels).float().mean()
    loss.backward()
    model.finish_grad_sync()
    optimizer.step()
    return float(loss)


if __name__ == "__main__":
    main()
