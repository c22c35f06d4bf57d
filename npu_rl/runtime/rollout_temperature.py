"""Adaptation rollout-temperature: Megatron's actor and reference use the rollout's sampling temperature.

The rollout samples from softmax(logits / T). verl's FSDP actor divides by T (workers/actor/dp_actor.py:192@55e3c5b),
but its Megatron actor did not before 5deb8cc9a (#3133): log-probabilities, ratios, KL and entropy belonged to another
distribution than the sampled one.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "rollout-temperature"


def of(data: Any) -> float:
    """Return the temperature of a batch, or 1.0 while the switch is off.

    data: verl's DataProto. Raises KeyError if the worker or trainer has not passed it: a default of 1.0 would silently
    repeat upstream's fault.
    """
    if not enabled(SLUG):
        return 1.0
    count(SLUG)
    return float(data.meta_info["temperature"])


def carry(data: Any, config: Any) -> None:
    """Add the rollout's temperature to a batch whose trainer does not pass it.

    config: the worker's configuration, with `rollout.temperature`.
    """
    if enabled(SLUG):
        data.meta_info["temperature"] = config.rollout.temperature


def scale(logits: Any, temperature: float) -> Any:
    """Divide logits by the temperature in place, as upstream's fix does: a copy would double their memory."""
    return logits if temperature == 1.0 else logits.div_(temperature)
