"""Log-probabilities that the driver has: their positions, and a reference that is not the actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .counts import compared, not_recomputed
from .difference import Difference, report
from .step_batch import StepBatch

POSITIONS, REFERENCE = "positions of log-probabilities", "reference's log-probabilities"
_CLEARLY = 2.0
"""Factor between the differences of two alignments with the rollout, from which one of them is the right one."""


def require_positions(batch: StepBatch, mask: torch.Tensor) -> None:
    """Report log-probabilities that equal the rollout's one position earlier or later much better than their own.

    A batch whose tokens are all equally probable shows nothing, and is not counted.
    """
    own, other = batch.tensors.get("old_log_probs"), batch.tensors.get("rollout_log_probs")
    if own is None or other is None:
        missing = "the actor's before the update" if own is None else "the rollout's"
        not_recomputed(POSITIONS, f"the trainer does not have {missing}")
        return
    own, other = own.double().exp(), other.double().exp()
    here = _mean(own, other, mask)
    late = _mean(own[:, 1:], other[:, :-1], mask[:, 1:] & mask[:, :-1])
    early = _mean(own[:, :-1], other[:, 1:], mask[:, 1:] & mask[:, :-1])
    for name, shifted in {"late": late, "early": early}.items():
        if _CLEARLY * shifted < here:
            mistake = f"log-probabilities are one position {name}"
            text = f"mean difference {here:.2g} from the rollout's", f"{shifted:.2g} one position {name}"
            report(Difference(POSITIONS, *text, mistake=mistake, step=batch.step))
    if min(late, early) > _CLEARLY * here:
        compared(POSITIONS)


def _mean(own: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> float:
    return float((own - other).abs()[mask].mean()) if bool(mask.any()) else 0.0


def require_own_reference(batch: StepBatch, rates: Sequence[float | None]) -> None:
    """Report a reference whose log-probabilities all are the actor's, though an update has changed the actor.

    Args:
        rates: Learning rates of the updates before this step, as the trainer reports them.
    """
    actor, reference = batch.tensors.get("old_log_probs"), batch.tensors.get("ref_log_prob")
    if reference is None:
        return
    if actor is None or None in rates:
        missing = "the actor's before the update" if actor is None else "the rate of an update"
        not_recomputed(REFERENCE, f"the trainer does not have {missing}")
        return
    if not any(rates):
        return
    mask = batch.tensors["response_mask"].bool()
    if torch.equal(actor[mask], reference[mask]):
        mistake = "the reference is the actor, not the model before training"
        report(Difference(REFERENCE, "all equal the actor's", "others", mistake=mistake, step=batch.step))
    compared(REFERENCE)


def rate(result: Any) -> float | None:
    """Return the learning rate of an update from its metrics, or None if they don't have it."""
    found = getattr(result, "meta_info", {}).get("metrics", {}).get("actor/lr")
    return max(found) if isinstance(found, (list, tuple)) else found
