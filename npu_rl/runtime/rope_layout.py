"""Adaptation rope-layout: mbridge reads RoPE's base and YaRN scaling from a transformers 5 configuration.

Transformers 5 keeps both in `rope_parameters`, and its Qwen3MoeConfig and DeepseekV3Config have no `rope_theta`.
mbridge 0.15.1 reads `rope_theta`, so it can't build the model, and reads `rope_scaling` only if iterating over the
configuration yields it (mbridge/core/llm_bridge.py:124, mbridge/models/deepseek_v3.py:115@0cd4ae23); upstream's fixes
are mbridge a42336bf00, 680253fb7c and 2f7469acdd.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "rope-layout"


def base(hf_config: Any) -> Any:
    """Return RoPE's base from a configuration of transformers 4 or 5. Raises AttributeError if it is missing."""
    parameters = _parameters(hf_config)
    if parameters is None:
        return hf_config.rope_theta
    count(SLUG)
    return parameters["rope_theta"]


def scaling(hf_config: Any) -> dict[str, Any]:
    """Return the RoPE scaling in transformers 4's layout; empty for a model without scaling."""
    parameters = _parameters(hf_config)
    if parameters is None:
        has = "rope_scaling" in hf_config and hf_config.rope_scaling is not None
        return dict(hf_config.rope_scaling) if has else {}
    count(SLUG)
    kind = parameters.get("rope_type", "default")
    return {} if kind == "default" else {**parameters, "type": kind}


def _parameters(hf_config: Any) -> Any:
    """Return transformers 5's `rope_parameters`; None for a configuration with its own `rope_theta`."""
    if not enabled(SLUG) or hasattr(hf_config, "rope_theta"):
        return None
    parameters = getattr(hf_config, "rope_parameters", None)
    return parameters if parameters and "rope_theta" in parameters else None
