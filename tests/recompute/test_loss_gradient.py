"""Closed-form gradients of the loss against torch's, of losses that are written here once more, from the papers."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from npu_rl.common.python_roots import REHEARSAL

torch = pytest.importorskip("torch")
sys.path.insert(0, str(REHEARSAL))
from npu_rl_recompute.loss_gradient import (  # noqa: E402
    Loss,
    Rows,
    entropy_gradient,
    known_mistakes,
    loss_gradient,
    token_weights,
)

sys.path.remove(str(REHEARSAL))

ROWS, TOKENS, SCALE = 6, 11, 0.25
LOSSES = {
    "PPO": Loss(dual=None),
    "DAPO": Loss(low=0.2, high=0.28, dual=None),
    "dual clip": Loss(dual=3.0),
    "GSPO": Loss("gspo", 3e-2, 4e-2, None, "seq-mean-token-mean"),
    **{f"KL {kind}": Loss(kl=kind, kl_coefficient=0.1) for kind in ("k1", "k2", "k3", "abs")},
    **{mode: Loss(aggregation=mode) for mode in ("seq-mean-token-sum", "seq-mean-token-mean")},
    "seq-mean-token-sum-norm": Loss(aggregation="seq-mean-token-sum-norm"),
}  # fmt: skip


def some_rows(seed: int = 1) -> Rows:
    """Log-probabilities so far apart that ratios are beyond every bound, and some limits of verl are reached."""
    numbers = torch.Generator().manual_seed(seed)

    def values(size: float) -> Any:
        return size * torch.randn(ROWS, TOKENS, generator=numbers, dtype=torch.float64)

    ends = torch.randint(1, TOKENS + 1, (ROWS, 1), generator=numbers)
    ends[0] = TOKENS
    mask = (torch.arange(TOKENS) < ends).double()
    old = values(1.0) - 4
    current, reference = old + values(0.6), old + values(1.0)
    reference[0, :2] += torch.tensor([4.0, 25.0])  # k3 above 10, and the difference above 20
    return Rows(current, old, values(1.0) * mask, mask, reference)


def loss_value(rows: Rows, loss: Loss, current: Any) -> Any:
    """The loss of the papers, as an objective that is maximized, negated."""
    log_ratio = current - rows.old
    if loss.mode == "gspo":
        of_row = (log_ratio * rows.mask).sum(1, keepdim=True) / rows.mask.sum(1, keepdim=True)
        log_ratio = of_row.detach() + current - current.detach()  # eq. 15: GSPO-token
    ratio = log_ratio.clamp(-20, 20).exp()
    gain = torch.minimum(ratio * rows.advantages, ratio.clamp(1 - loss.low, 1 + loss.high) * rows.advantages)
    if loss.dual is not None:
        gain = torch.where(rows.advantages < 0, torch.maximum(gain, loss.dual * rows.advantages), gain)
    each = -gain
    if loss.kl is not None:
        away = rows.reference - current
        limited = away.clamp(-20, 20)
        kinds = {
            "k1": -away,
            "k2": away**2 / 2,
            "abs": away.abs(),
            "k3": (limited.exp() - limited - 1).clamp(max=10),
        }
        each = each + loss.kl_coefficient * kinds[loss.kl]
    each = each * rows.mask
    return {
        "token-mean": each.sum() / rows.mask.sum(),
        "seq-mean-token-sum": each.sum(1).mean(),
        "seq-mean-token-mean": (each.sum(1) / rows.mask.sum(1)).mean(),
        "seq-mean-token-sum-norm": each.sum() / TOKENS,
    }[loss.aggregation]


@pytest.mark.parametrize("name", LOSSES)
def test_of_the_formula(name: str) -> None:
    rows, loss = some_rows(), LOSSES[name]
    current = rows.current.clone().requires_grad_()
    (want,) = torch.autograd.grad(SCALE * loss_value(rows, loss, current), current)
    found = loss_gradient(rows, loss, SCALE)
    torch.testing.assert_close(found.values, want, rtol=1e-12, atol=1e-15)
    assert torch.isfinite(found.tolerances).all() and (found.tolerances[rows.mask > 0] > 0).all()


def test_a_ratio_at_a_bound_may_be_clipped_or_not() -> None:
    rows = some_rows()
    rows.current[1, 0] = rows.old[1, 0] + torch.log(torch.tensor(1.2, dtype=torch.float64))
    tolerances = loss_gradient(rows, Loss(), 1.0).tolerances
    assert torch.isinf(tolerances).nonzero().tolist() == [[1, 0]]


def test_weights_of_tokens_add_up() -> None:
    mask = some_rows().mask
    for mode in ("token-mean", "seq-mean-token-mean"):
        assert float(token_weights(mask, mode).sum()) == pytest.approx(1.0)
    with pytest.raises(KeyError):
        token_weights(mask, "token-sum")


def test_entropy_is_subtracted() -> None:
    rows, loss = some_rows(), Loss(entropy=0.01)
    entropy = torch.rand_like(rows.mask).requires_grad_()
    (want,) = torch.autograd.grad(-loss.entropy * (entropy * rows.mask).sum() / rows.mask.sum(), entropy)
    torch.testing.assert_close(entropy_gradient(rows.mask, loss, 1.0), want)


def test_each_known_mistake_has_a_form_of_its_own() -> None:
    case = some_rows(), Loss(low=0.2, high=0.28, kl="k3", kl_coefficient=0.1), 0.25
    right = loss_gradient(*case)
    forms = {name: loss_gradient(*wrong()).values for name, wrong in known_mistakes(*case, 4)}
    assert len(forms) > 15
    for name, values in forms.items():
        same = [
            other
            for other, own in {**forms, "right": right.values}.items()
            if bool(((values - own).abs() <= right.tolerances).all())
        ]
        assert same == [name]
