"""Keys of Megatron and MindSpeed for the layers, stages and lengths of the recipe's own model.

A tiny model has few layers, so rehearsals leave these keys out.
"""

from __future__ import annotations

LAYER_KEYS = frozenset(
    {
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_num_transformer_layers",
        "recompute_num_layers",
        "recompute_granularity",
        "recompute_method",
    }
)
YARN_KEYS = frozenset(
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
EXPERT_KEYS = frozenset({"moe_router_num_groups", "moe_router_group_topk"})
RANK_KEYS = frozenset({"context_parallel_size"})
"""Sizes over ranks that are said again among the keys of the model, as verl 796871d needs."""
SIZE_KEYS = LAYER_KEYS | YARN_KEYS | EXPERT_KEYS | RANK_KEYS
LAYER_OVERRIDES = frozenset({"actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"})
"""Such keys of a trainer, below a recipe's `overrides`: cann-recipes-train's stages."""
