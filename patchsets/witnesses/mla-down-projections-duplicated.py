"""Megatron-LM keeps whole copies of latent attention's down projections on every tensor-parallel rank.

"projections" has the classes of get_gpt_layer_with_transformer_engine_spec
(megatron/core/models/gpt/gpt_layer_specs.py@4af25fe); TELinear is a copy, TEColumnParallelLinear a part.

TransformerEngine has no CPU build, nor has triton, which two files of Megatron-LM need to be imported: names of all of
them are stood in for, and none computes.
"""

from __future__ import annotations

import json
import sys

import torch
from npu_rl_standins.named_modules import NamedModules

FUSIONS = "megatron.core.fusions"
WITH_TRITON = (f"{FUSIONS}.fused_indices_converter", f"{FUSIONS}.fused_pad_routing_map")
NAMES = ("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")


sys.meta_path.insert(
    0, NamedModules("transformer_engine", *WITH_TRITON, version="2.7.0", base=torch.nn.Module)
)

from megatron.core.models.gpt import gpt_layer_specs  # noqa: E402

layer = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
    num_experts=8, moe_grouped_gemm=True, qk_layernorm=True, multi_latent_attention=True
)
projections = layer.submodules.self_attention.submodules
classes = {name: getattr(projections, name).__name__ for name in NAMES}
print(json.dumps({"fault": classes["linear_kv_down_proj"] == "TELinear", "projections": classes}))
