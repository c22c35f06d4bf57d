"""Tokens that are drawn otherwise than their request says. That vLLM's sampler is watched: test_engine.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL, VLLM

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

LOGITS = torch.tensor([[8.0, 6.0, 5.0, 0.0, -9.0], [0.0, 1.0, 3.0, 2.0, -1.0]])


@pytest.fixture(scope="module")
def draws() -> Iterator[Any]:
    folders = [str(INJECTED), str(REHEARSAL), str(VLLM)]
    sys.path[:0] = folders
    try:
        yield importlib.import_module("npu_rl_standins_vllm.draws")
    finally:
        del sys.path[: len(folders)]


def request(temperature: float = 0.7, top_k: int | None = None, top_p: float | None = None) -> Any:
    """Two requests, of which the second has a temperature of 0.9."""
    k, p = (None if value is None else torch.full((2,), value) for value in (top_k, top_p))
    return SimpleNamespace(temperature=torch.tensor([temperature, 0.9]), top_k=k, top_p=p)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logits_over_another_temperature_are_named(draws: Any, temperature: float) -> None:
    """Those of a greedy request are not drawn from; min-p takes some away."""
    asked = request(temperature)
    wanted = draws.over_temperature(LOGITS, asked.temperature)
    draws.require_scaled(wanted.masked_fill(wanted < 0, -torch.inf), wanted, asked)
    other = wanted.clone()
    other[0] *= 0.9
    if not temperature:
        draws.require_scaled(other, wanted, asked)
        return
    with pytest.raises(draws.DrawError, match=rf"at another temperature than {temperature:g}: its logits"):
        draws.require_scaled(other, wanted, asked)


@pytest.mark.parametrize(
    ("asked", "right", "wrong", "said"),
    [
        ({"top_k": 2}, [1, 3], [2, 3], r"token 3 in order of likelihood, with top_k 2"),
        ({"top_p": 0.95}, [1, 3], [2, 3], r"a token below 0\.958 of the probability, with top_p 0\.95"),
        ({"top_k": 3, "top_p": 0.99}, [2, 0], [3, 3], r"token 4 in order of likelihood"),
    ],
)
def test_a_token_outside_of_top_k_and_top_p_is_named(
    draws: Any, asked: dict[str, Any], right: list[int], wrong: list[int], said: str
) -> None:
    given = request(1.0, **asked)
    wanted = draws.over_temperature(LOGITS, given.temperature)
    draws.require_allowed(torch.tensor([right[0], 2]), wanted, given)
    with pytest.raises(draws.DrawError, match=said):
        draws.require_allowed(torch.tensor([wrong[0], 2]), wanted, given)
    draws.require_allowed(torch.tensor([4, 0]), wanted, request(1.0))
