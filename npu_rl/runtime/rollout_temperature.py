"""Adaptation rollout-temperature: Megatron's actor and reference take the temperature that the rollout sampled with.

The rollout samples from softmax(logits / T). verl's FSDP actor divides by T (workers/actor/dp_actor.py:192@55e3c5b),
its Megatron actor did not before 5deb8cc9a (#3133): log-probabilities, ratios, KL and entropy were of another
distribution than the one sampled.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "rollout-temperature"


def of(data: Any) -> float:
    """The temperature of a batch, or 1.0 while the switch is off.

    data: verl's DataProto. Raises KeyError where the worker or trainer has not passed it on: 1.0 in its place would be
    the fault again, without a word.
    """
    if not enabled(SLUG):
        return 1.0
    count(SLUG)
    return float(data.meta_info["temperature"])


def carry(data: Any, config: Any) -> None:
    """Put the rollout's temperature into a batch whose trainer does not pass it on.

    config: the worker's, with `rollout.temperature`.
    """
    if enabled(SLUG):
        data.meta_info["temperature"] = config.rollout.temperature


def scale(logits: Any, temperature: float) -> Any:
    """Divide logits by the temperature, in place, as upstream's fix does: a copy would be as large as they are."""
    return logits if temperature == 1.0 else logits.div_(temperature)
