"""Adaptation sampler-arguments: pass k and p to vllm-ascend's top-k and top-p filter in the right order."""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "sampler-arguments"


def in_order(k: Any, p: Any) -> tuple[Any, Any]:
    """Return the arguments after the logits of `_apply_top_k_top_p(logits, p, k)` (patch_sampler.py:49@f20869ef).

    Before 734eb68129 upstream passes (k, p); this does the same while the switch is off.
    """
    if not enabled(SLUG):
        return k, p
    count(SLUG)
    return p, k
