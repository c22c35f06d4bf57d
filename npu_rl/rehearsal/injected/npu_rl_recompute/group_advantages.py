"""Advantages of outcome rewards relative to a group, in float64.

GRPO: A_i = (R_i - mean(R)) / std(R) over the responses to one prompt, for every token of response i (Shao et al. 2024,
DeepSeekMath, arXiv:2402.03300, 4.1.2). DAPO has the same advantage, over groups whose rewards are not all equal (Yu et
al. 2025, arXiv:2503.14476, eq. 9 and 11). Dr. GRPO leaves out the division (Liu et al. 2025, arXiv:2503.20783, 3.2).
The papers don't say which standard deviation; verl's is the sample's, divided by n - 1, plus 1e-6, and a group of one
response has mean 0 and deviation 1 (verl/trainer/ppo/core_algos.py@v0.5.0, compute_grpo_outcome_advantage).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

RELATIVE = 1e-5
"""Tolerance of an advantage, relative to its size or to 1 where it is smaller."""
_EPSILON = 1e-6
_FLOAT32 = 2.0**-23
_ROUNDINGS = 8  # float32 roundings between the sum of a row's rewards and its distance to the mean


@dataclass(frozen=True)
class Advantages:
    """Advantages by row, and what float32 may differ from them."""

    values: torch.Tensor
    tolerances: torch.Tensor


def group_advantages(
    scores: torch.Tensor,
    groups: Sequence[Hashable],
    *,
    by_deviation: bool,
    without_last: bool = False,
    of_population: bool = False,
) -> Advantages:
    """Return the advantages of all rows.

    Args:
        scores: Sum of each row's rewards, in the trainer's dtype.
        groups: Name of each row's group.
        by_deviation: Whether they are divided by the standard deviation.
        without_last: Make the mistake of statistics that leave out the group's last response.
        of_population: Make the mistake of a deviation divided by n.
    """
    values = torch.zeros(len(scores), dtype=torch.float64)
    tolerances = torch.zeros_like(values)
    rows: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    for members in rows.values():
        own = scores[members]
        counted = own[:-1] if without_last and len(own) > 1 else own
        # The mean of equal numbers differs from them by a rounding, which the tiny deviation then magnifies: in
        # float32 the trainer's value is neither 0 nor that of float64, but follows from the same operations.
        equal = bool((own == own[0]).all())
        of = (lambda tensor: tensor) if equal else torch.Tensor.double
        mean, deviation = torch.tensor(0.0), torch.tensor(1.0)
        if len(counted) > 1:
            mean, deviation = of(counted).mean(), of(counted).std(unbiased=not of_population)
        divisor = deviation + _EPSILON if by_deviation else torch.tensor(1.0)
        values[members] = ((of(own) - mean) / divisor).double()
        rounding = _ROUNDINGS * _FLOAT32 * float(own.abs().max()) / float(divisor)
        relative = RELATIVE * values[members].abs().clamp(min=1)
        # Of equal rewards the formula's value is 0.
        tolerances[members] = relative + (values[members].abs() if equal else rounding)
    return Advantages(values, tolerances)


def known_mistakes(
    scores: torch.Tensor, groups: Sequence[Hashable], *, by_deviation: bool
) -> dict[str, torch.Tensor]:
    """Return the advantages that each known mistake makes, by its name."""
    right = group_advantages(scores, groups, by_deviation=by_deviation).values
    count = len(set(groups))
    return {
        "its sign is exchanged": -right,
        "the group's statistics leave out its last response": group_advantages(
            scores, groups, by_deviation=by_deviation, without_last=True
        ).values,
        "the group's deviation is divided by n, not n - 1": group_advantages(
            scores, groups, by_deviation=by_deviation, of_population=True
        ).values,
        "the deviation is left out" if by_deviation else "it is divided by the deviation": group_advantages(
            scores, groups, by_deviation=not by_deviation
        ).values,
        "groups are mixed: every n-th row, not neighbours": group_advantages(
            scores, [row % count for row in range(len(scores))], by_deviation=by_deviation
        ).values,
        "groups are mixed: one group of all rows": group_advantages(
            scores, [0] * len(scores), by_deviation=by_deviation
        ).values,
        "it is the reward, without the group's mean": scores.double(),
        "it is that of the next row": right.roll(-1),
        "it is that of the row before": right.roll(1),
    }
