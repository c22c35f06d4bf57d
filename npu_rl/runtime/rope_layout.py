"""Adaptation rope-layout: mbridge reads RoPE's base and YaRN scaling from a transformers 5 configuration.

Transformers 5 keeps both in `rope_parameters`, and its Qwen3MoeConfig and DeepseekV3Config have no `rope_theta`. A
configuration class that a checkpoint brings (`trust_remote_code`), as DeepSeek-V3's does, sets `rope_theta` itself;
what it sets as `rope_scaling` transformers 5.5.4 keeps in `rope_parameters`, and iterating over it yields only that.
mbridge 0.15.1 reads `rope_theta`, so it can't build the model with the former, and reads `rope_scaling` only if
iterating yields it, so it loses YaRN with either (mbridge/core/llm_bridge.py:124,
mbridge/models/deepseek_v3.py:115@0cd4ae23); upstream's fixes are mbridge a42336bf00, 680253fb7c and 2f7469acdd.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "rope-layout"


def base(hf_config: Any) -> Any:
    """Return RoPE's base: `rope_theta`, else that of `rope_parameters`. Raises AttributeError if it is missing."""
    parameters = getattr(hf_config, "rope_parameters", None) or {}
    if hasattr(hf_config, "rope_theta") or "rope_theta" not in parameters or not enabled(SLUG):
        return hf_config.rope_theta
    count(SLUG)
    return parameters["rope_theta"]


def scaling(hf_config: Any) -> dict[str, Any]:
    """Return the RoPE scaling in transformers 4's layout; empty for a model without scaling.

    It is `rope_scaling`, else `rope_parameters`, whichever attribute has the base.
    """
    is_listed = "rope_scaling" in hf_config  # upstream's condition; false with transformers 5
    if not enabled(SLUG):
        return dict(hf_config.rope_scaling or {}) if is_listed else {}
    found = getattr(hf_config, "rope_scaling", None) or getattr(hf_config, "rope_parameters", None) or {}
    kind = found.get("rope_type") or found.get("type", "default")
    if kind == "default":
        return {}
    if not is_listed:
        count(SLUG)
    return {**found, "type": kind}
