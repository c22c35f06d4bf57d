"""When the loss's own log-probabilities may be the old ones. verl's actor:
patchsets/witnesses/on-policy-ratio-drifts.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.runtime.on_policy_logprob import check, old_log_prob

SWITCH = "NPU_RL_ON_POLICY_LOGPROB"


def config(mini: int = 4, epochs: int = 1) -> Any:
    return SimpleNamespace(ppo_mini_batch_size=mini, ppo_epochs=epochs)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 8))
def test_what_passes_is_one_step(answers: int, mini: int, epochs: int) -> None:
    """verl makes answers * epochs // mini steps, and asserts that mini divides answers (verl/protocol.py:705)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "1")
        try:
            check(answers, config(mini, epochs))
        except ValueError:
            assert answers * epochs // mini != 1 or answers % mini or epochs > 1
        else:
            assert answers % mini == 0 and answers * epochs // mini == 1


def test_one_step_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    check(4, config())
    with pytest.raises(ValueError, match=r"has 8 responses of the batch and its mini batch is 4.*data.batch"):
        check(8, config())
    with pytest.raises(ValueError, match=r"actor\.epochs is 2.*NPU_RL_ON_POLICY_LOGPROB=0"):
        check(4, config(epochs=2))
    with pytest.raises(ValueError, match=r"actor\.epochs is 2"):
        old_log_prob(None, None, config(epochs=2))


@pytest.mark.parametrize("value", [None, "", "0"])
def test_off_is_the_default(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    check(8, config(epochs=3))
    old = object()
    assert old_log_prob(old, None, config(epochs=3)) is old


@pytest.mark.rehearsal
def test_no_gradient_goes_through_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    monkeypatch.setenv(SWITCH, "1")
    log_prob = torch.randn(3, 5, requires_grad=True)
    taken = old_log_prob(torch.randn(3, 5), log_prob, config())
    assert torch.equal(taken, log_prob) and not taken.requires_grad
    ratio = torch.exp(log_prob - taken)
    advantage = torch.randn(3, 5)
    (gradient,) = torch.autograd.grad((-advantage * ratio).sum(), log_prob)
    assert torch.equal(ratio, torch.ones(3, 5))
    assert torch.equal(gradient, -advantage)
