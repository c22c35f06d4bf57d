"""Builds every pipeline stage of DeepSeek-V3 with Megatron-core's own layers on torch's meta device.

Run with the tree's code and `rehearsal/injected` on PYTHONPATH; a JSON list of layouts is the argument.
Writes one JSON list: per layout and stage the parameters of each kind and the bytes they take.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from npu_rl_rehearsal import cpu_cuda, fake_world
from npu_rl_rehearsal.megatron import initialize, parallel_state
from npu_rl_rehearsal.tiny_megatron import _use_local_layers

KINDS = {
    "word_embeddings": "embedding",
    "output_layer": "head",
    "layernorm": "norms",
    ".shared_experts.": "shared experts",
    ".experts.": "experts",
    ".router.": "router",
    ".self_attention.": "attention",
    ".mlp.": "dense layers",
}


def kind(name: str) -> str:
    return next(found for part, found in KINDS.items() if part in name)


def stages(sizes: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for stage in range(sizes["pipeline"]):
        with fake_world.as_rank(stage * sizes["world"] // sizes["pipeline"], sizes["world"]):
            state = parallel_state()
            initialize(state, sizes, create_gloo_process_groups=False)
            with cpu_cuda.OnCpu(), torch.device("meta"):
                rows.append(build(sizes, state))
            state.destroy_model_parallel()
    return rows


def build(sizes: dict[str, Any], state: Any) -> dict[str, Any]:
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    model, layers = sizes["model"], sum(sizes["layers"])
    config = MLATransformerConfig(
        num_layers=layers,
        hidden_size=model["hidden"],
        num_attention_heads=model["heads"],
        ffn_hidden_size=model["feed_forward"],
        q_lora_rank=model["query_rank"],
        kv_lora_rank=model["cache_rank"],
        qk_head_dim=model["nope_dim"],
        qk_pos_emb_head_dim=model["rope_dim"],
        v_head_dim=model["value_dim"],
        rope_type="rope",
        qk_layernorm=True,
        normalization="RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=sizes["tensor"],
        pipeline_model_parallel_size=sizes["pipeline"],
        expert_model_parallel_size=sizes["expert"],
        expert_tensor_parallel_size=sizes["expert_tensor"],
        sequence_parallel=sizes["tensor"] > 1,
        num_layers_in_first_pipeline_stage=sizes["layers"][0],
        num_layers_in_last_pipeline_stage=sizes["layers"][-1],
        num_moe_experts=model["experts"],
        moe_ffn_hidden_size=model["expert_width"],
        moe_shared_expert_intermediate_size=model["expert_width"] * model["shared_experts"],
        moe_router_topk=8,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_load_balancing_type="none",
        moe_layer_freq=[0] * model["dense"] + [1] * (layers - model["dense"]),
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=False,
    )
    spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    _use_local_layers(spec)
    built = GPTModel(
        config,
        spec,
        vocab_size=model["vocabulary"],
        max_sequence_length=4096,
        pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    built.bfloat16()  # as Megatron's Float16Module does
    counts: Counter[str] = Counter()
    for name, weight in built.named_parameters():
        assert weight.is_meta, name
        counts[kind(name)] += weight.numel()
    return {
        "layers": len(built.decoder.layers),
        "counts": counts,
        "bytes": sum(weight.numel() * weight.element_size() for weight in built.parameters()),
    }


cpu_cuda.install()
print(json.dumps([stages(sizes) for sizes in json.loads(sys.argv[1])]))
