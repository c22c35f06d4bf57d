"""Adaptation router-groups: mbridge passes a DeepSeek-V3 model's expert groups to Megatron-core.

DeepSeek-V3 chooses its experts within the best `topk_group` of `n_group` groups (DeepSeek-AI 2024, arXiv:2412.19437,
section 2.1.2: node-limited routing). mbridge 0.15.1 passes neither to Megatron-core's configuration
(mbridge/models/deepseek_v3.py:103@0cd4ae23): the actor chooses among all experts, vLLM's rollout within the groups.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "router-groups"


def transformer_options(hf_config: Any) -> dict[str, int]:
    """Return the arguments of Megatron-core's TransformerConfig for the groups in config.json.

    Empty for a model with one group, such as Moonlight: there is nothing to choose between. mbridge applies a recipe's
    overrides later, so they take precedence.
    """
    groups, chosen = getattr(hf_config, "n_group", None), getattr(hf_config, "topk_group", None)
    if not enabled(SLUG) or not groups or groups == 1 or not chosen:
        return {}
    count(SLUG)
    return {"moe_router_num_groups": groups, "moe_router_group_topk": chosen}
