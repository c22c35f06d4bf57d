"""What a recipe says to Megatron and MindSpeed about its own model's layers, stages and lengths.

A tiny model has few layers, so these are left out where one stands in for the real one.
"""

from __future__ import annotations

OF_THE_LAYERS = frozenset(
    {
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_num_transformer_layers",
        "recompute_num_layers",
        "recompute_granularity",
        "recompute_method",
    }
)
OF_YARN = frozenset(
    {
        "rope_scaling_type",
        "yarn_scaling_factor",
        "rope_scaling_mscale",
        "rope_scaling_mscale_all_dim",
        "rope_scaling_original_max_position_embeddings",
        "rope_scaling_beta_fast",
        "rope_scaling_beta_slow",
    }
)
OF_THE_EXPERTS = frozenset({"moe_router_num_groups", "moe_router_group_topk"})
OF_THE_SIZE = OF_THE_LAYERS | OF_YARN | OF_THE_EXPERTS
