"""Adaptation parameter-groups: a resumed optimizer takes each group's options from the saved group of the same kind.

Megatron's distributed checkpoint has rank 0's groups, and Megatron-core 0.12.1 assigns them to every rank's groups by
number (megatron/core/optimizer/distrib_optimizer.py:688@a845aa7). The number depends on the order of a stage's
parameters: the first stage begins with the embedding, a matrix, the others with a norm. So weight decay is swapped
between groups on all stages but the first. Megatron-LM 9a45638758 (core 0.14) matches groups by their options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .switches import enabled
from .used import count

SLUG = "parameter-groups"
KEYS = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr")
"""What Megatron-core makes groups by (`_get_param_groups`), and what upstream matches them by since."""


def in_order(saved: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the checkpoint's groups in the order of this rank's groups.

    saved: The parameter groups of a checkpoint. own: This optimizer's groups. Raises ValueError if a group of this rank
    is missing from the checkpoint: upstream also raises an error, or assigns it another group's options.
    """
    if not enabled(SLUG):
        return list(saved)
    by_kind = {_kind(group): group for group in saved}
    kinds = [_kind(group) for group in own]
    missing = [kind for kind in kinds if kind not in by_kind]
    if missing:
        raise ValueError(
            f"The checkpoint has no parameter group with {dict(zip(KEYS, missing[0], strict=True))}; it has "
            f"{[dict(zip(KEYS, kind, strict=True)) for kind in by_kind]}"
        )
    found = [by_kind[kind] for kind in kinds]
    if any(one is not other for one, other in zip(found, saved, strict=False)):
        count(SLUG)
    return _with_steps(found)


def _with_steps(groups: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Set the step of groups without parameters on rank 0, which Transformer Engine's FusedAdam does not count.

    MindSpeed's AdamW counts every group (mindspeed/core/optimizer/adamw.py:117@7ff818c), and its step is a tensor.
    """
    step = next((group["step"] for group in groups if isinstance(group.get("step"), int)), None)
    return [group if step is None or "step" in group else {**group, "step": step} for group in groups]


def _kind(group: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(group[key] for key in KEYS)
