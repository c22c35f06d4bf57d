"""Keys of Megatron and MindSpeed for the layers, stages and lengths of the recipe's own model.

A tiny model has few layers, so rehearsals leave these keys out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LAYER_KEYS = frozenset(
    {
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_num_transformer_layers",
    }
)
RECOMPUTE_KEYS = frozenset({"recompute_num_layers", "recompute_granularity", "recompute_method"})
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
TINY_GROUPS = {"moe_router_num_groups": 2, "moe_router_group_topk": 1}
"""The tiny DeepSeek-V3's n_group and topk_group, for a recipe that sets its own: without them tokens go anywhere."""
RANK_KEYS = frozenset({"context_parallel_size"})
"""Sizes over ranks that are said again among the keys of the model, as verl 796871d needs."""
SIZE_KEYS = LAYER_KEYS | RECOMPUTE_KEYS | YARN_KEYS | TINY_GROUPS.keys() | RANK_KEYS
LAYER_OVERRIDES = frozenset({"actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"})
"""Such keys of a trainer, below a recipe's `overrides`: cann-recipes-train's stages."""


def scaled_transformer(given: Mapping[str, Any], left_out: frozenset[str]) -> dict[str, Any]:
    """Return the keys that a tiny training keeps: recomputation and groups of experts, where they are configured.

    Args:
        left_out: Keys that don't fit the tiny model.
    """
    kept = {name: value for name, value in given.items() if name not in left_out - RECOMPUTE_KEYS}
    tiny = {"recompute_num_layers": 1, **TINY_GROUPS}
    return {**kept, **{name: value for name, value in tiny.items() if name in given}}
