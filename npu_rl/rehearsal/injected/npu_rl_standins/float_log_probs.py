"""Log-probabilities of tokens in float32, which verl computes in the logits' bfloat16 on a CPU.

bfloat16 rounds a log-probability of -5.6 to a 32nd: two models that differ by less have a KL of exactly 0, and no
limit on it or on a ratio could be smaller (logprobs_from_logits_v2, verl/utils/torch_functional.py@v0.5.0). Real: the
logits, in their own dtype. Not proven: the rounding of the operator that a device takes instead.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .hooks import after_import
from .used import count


def install() -> None:
    """Give verl's function for log-probabilities logits in float32."""
    after_import("verl.utils.torch_functional", _install_in)


def _install_in(module: ModuleType) -> None:
    upstream = getattr(module, "logprobs_from_logits", None)
    if upstream is None:  # a witness of a fault stands in for verl's module
        return

    @functools.wraps(upstream)
    def logprobs_from_logits(logits: Any, *arguments: Any, **named: Any) -> Any:
        if logits.element_size() < 4:
            count("verl.logprobs_from_logits: float32")
            logits = logits.float()
        return upstream(logits, *arguments, **named)

    module.logprobs_from_logits = logprobs_from_logits  # type: ignore[attr-defined]
