"""Gradient of an actor's loss in each token's log-probability, in float64 and in closed form.

With r = exp(log p - log p_old), an advantage A and a token's weight w, before the trainer's scaling:

    PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7)
        L = -w min(r A, clip(r, 1-e, 1+e) A)        dL/d log p = -w r A, and 0 where r is clipped
    DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 8)  clip(r, 1-e_low, 1+e_high)
    dual clip (Ye et al. 2019, arXiv:1912.09729, eq. 5)
        A < 0: L = -w max(min(..), c A)             0 where r > c
    GSPO (Zheng et al. 2025, arXiv:2507.18071, eq. 5, 7 and 15)
        s = exp(mean of log r over the response)    -w s A, and 0 where s is clipped
    KL (Schulman 2020, http://joschu.net/blog/kl-approx.html), d = log p_ref - log p
        k1 = -d: w          k2 = d^2 / 2: -w d          k3 = exp(d) - d - 1: w (1 - exp(d))
    entropy H: L = -coefficient w H                 dL/dH = -coefficient w

verl limits log r to 20, GSPO's mean to 10, d to 20 and k3 to 10 on both sides, beyond which there is no gradient
(verl/trainer/ppo/core_algos.py@55e3c5b: compute_policy_loss, compute_policy_loss_gspo, kl_penalty).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

RELATIVE = 1e-5
"""Tolerance of a token's gradient, relative to the sum of the sizes of its terms."""
_LIMIT, _GSPO_LIMIT, _K3_LIMIT = 20.0, 10.0, 10.0
KL_KINDS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3", "abs": "abs"}


@dataclass(frozen=True)
class Loss:
    """The loss as the configuration describes it.

    Attributes:
        mode: "vanilla" (PPO, DAPO, dual clip) or "gspo".
        low: How far a ratio may be below 1, e_low.
        high: How far it may be above 1, e_high.
        dual: Greatest ratio of a token with a negative advantage, c; None is no dual clip.
        aggregation: verl's `loss_agg_mode`.
        kl: k1, k2, k3 or abs; None if the loss has no KL term.
        kl_coefficient: Factor of the KL term.
        entropy: Factor of the entropy, which is subtracted.
    """

    mode: str = "vanilla"
    low: float = 0.2
    high: float = 0.2
    dual: float | None = 3.0
    aggregation: str = "token-mean"
    kl: str | None = None
    kl_coefficient: float = 0.0
    entropy: float = 0.0


@dataclass(frozen=True)
class Rows:
    """What the loss of one micro batch is computed from: float64, (rows, tokens).

    Attributes:
        current: Log-probabilities of this pass.
        old: Those before the step's first update.
        advantages: The advantages.
        mask: 1 for tokens of the response, 0 after its end.
        reference: Log-probabilities of the reference; `current` if the loss has no KL term.
    """

    current: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    reference: torch.Tensor


@dataclass(frozen=True)
class Gradient:
    """Gradients of tokens, and what rounding may change of each; infinite where a ratio is at a clip bound."""

    values: torch.Tensor
    tolerances: torch.Tensor


def token_weights(mask: torch.Tensor, aggregation: str) -> torch.Tensor:
    """Return each token's weight in the loss of a micro batch (verl's agg_loss).

    Raises:
        KeyError: For an unknown mode.
    """
    rows, width = mask.shape
    lengths = mask.sum(1, keepdim=True)
    divisors: dict[str, torch.Tensor | int] = {
        "token-mean": mask.sum(),
        "seq-mean-token-sum": rows,
        "seq-mean-token-mean": rows * lengths.clamp(min=1),
        "seq-mean-token-sum-norm": width,
    }
    return mask / divisors[aggregation]


def loss_gradient(rows: Rows, loss: Loss, scale: float) -> Gradient:
    """Return dL/d log p of each token.

    Args:
        scale: Factor of the micro batch's loss in what backward starts from.
    """
    values, size, at_bound = _policy(rows, loss)
    # verl takes a ratio per response to need this mode (compute_policy_loss_gspo)
    mode = "seq-mean-token-mean" if loss.mode == "gspo" else loss.aggregation
    weights = scale * token_weights(rows.mask, mode)
    values, tolerances = weights * values, weights.abs() * size
    if loss.kl is not None:
        kl, kl_size = _kl(rows, loss.kl)
        weights = loss.kl_coefficient * scale * token_weights(rows.mask, loss.aggregation)
        values, tolerances = values + weights * kl, tolerances + weights.abs() * kl_size
    return Gradient(values, (RELATIVE * tolerances).masked_fill(at_bound & (rows.mask > 0), torch.inf))


def entropy_gradient(mask: torch.Tensor, loss: Loss, scale: float) -> torch.Tensor:
    """Return dL/dH of each token's entropy."""
    return -loss.entropy * scale * token_weights(mask, loss.aggregation)


def _policy(rows: Rows, loss: Loss) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the policy term's gradients without weights, their sizes, and which ratios are at a bound."""
    log_ratio = rows.current - rows.old
    if loss.mode == "gspo":
        lengths = rows.mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = ((log_ratio * rows.mask).sum(1, keepdim=True) / lengths).expand_as(log_ratio)
        inside, dual = log_ratio <= _GSPO_LIMIT, None
        ratio = log_ratio.clamp(max=_GSPO_LIMIT).exp()
    else:
        inside, dual = log_ratio.abs() <= _LIMIT, loss.dual
        ratio = log_ratio.clamp(-_LIMIT, _LIMIT).exp()
    better, worse = rows.advantages > 0, rows.advantages < 0
    clipped = (better & (ratio > 1 + loss.high)) | (worse & (ratio < 1 - loss.low))
    bounds = [1 - loss.low, 1 + loss.high]
    if dual is not None:
        clipped = clipped | (worse & (ratio > dual))
        bounds.append(dual)
    size = rows.advantages.abs() * ratio
    at_bound = torch.stack([(ratio - bound).abs() <= RELATIVE * bound for bound in bounds]).any(0)
    return (-rows.advantages * ratio).masked_fill(clipped | ~inside, 0), size, at_bound


def _kl(rows: Rows, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the KL term's gradients without weights and coefficient, and their sizes."""
    away = rows.reference - rows.current
    if kind == "k1":
        return torch.ones_like(away), torch.ones_like(away)
    if kind == "k2":
        return -away, away.abs()
    if kind == "abs":
        return -away.sign(), torch.ones_like(away)
    kept = (away.abs() <= _LIMIT) & (away.exp() - away - 1 <= _K3_LIMIT)
    return (1 - away.exp()).masked_fill(~kept, 0), 1 + away.clamp(max=_LIMIT).exp()


Case = tuple[Rows, Loss, float]
"""Arguments of `loss_gradient`."""


def known_mistakes(
    rows: Rows, loss: Loss, scale: float, micro_batches: int
) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name of each mistake that changes the loss, and what the loss then is computed from.

    Args:
        micro_batches: Number of micro batches whose gradients are added up before an update.
    """

    def same(name: str, **changes: object) -> tuple[str, Callable[[], Case]]:
        of_rows = {key: value for key, value in changes.items() if hasattr(rows, key)}
        of_loss = {key: value for key, value in changes.items() if key not in of_rows}
        return name, lambda: (replace(rows, **of_rows), replace(loss, **of_loss), scale)  # type: ignore[arg-type]

    if loss.kl is not None:
        yield same("the KL term is missing or detached", kl=None)
        yield same("the KL term's sign is exchanged", kl_coefficient=-loss.kl_coefficient)
        for kind in {"k1", "k2", "k3", "abs"} - {loss.kl}:
            yield same(f"the KL term is {kind}, not {loss.kl}", kl=kind)
        yield same("old log-probabilities are the reference's", old=rows.reference)
    yield same("old log-probabilities are the current ones", old=rows.current)
    yield same("the advantage's sign is exchanged", advantages=-rows.advantages)
    yield same("clip bounds are exchanged", low=loss.high, high=loss.low)
    yield same("the dual clip is missing", dual=None)
    yield same("clipping is missing", low=torch.inf, high=torch.inf, dual=None)
    first, last = torch.ones_like(rows.mask[:, :1]), torch.zeros_like(rows.mask[:, :1])
    yield same("the mask is one token early", mask=torch.cat([rows.mask[:, 1:], last], 1))
    for start in (first, last):
        yield same("the mask is one token late", mask=torch.cat([start, rows.mask[:, :-1]], 1))
    yield same("the mask has every token", mask=torch.ones_like(rows.mask))
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        if mode != loss.aggregation:
            yield same(f"the aggregation is {mode}, not {loss.aggregation}", aggregation=mode)
    if micro_batches > 1:
        yield (
            "the loss is not divided by the number of micro batches",
            lambda: (rows, loss, scale * micro_batches),
        )
        yield (
            "the loss is divided twice by the number of micro batches",
            lambda: (rows, loss, scale / micro_batches),
        )
