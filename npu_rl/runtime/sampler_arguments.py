"""Adaptation sampler-arguments: vllm-ascend's top-k and top-p filter gets k as k and p as p."""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "sampler-arguments"


def in_order(k: Any, p: Any) -> tuple[Any, Any]:
    """The two arguments after the logits of `_apply_top_k_top_p(logits, p, k)` (patch_sampler.py:49@f20869ef).

    Upstream passes (k, p), until 734eb68129; so does this with the switch off.
    """
    if not enabled(SLUG):
        return k, p
    count(SLUG)
    return p, k
