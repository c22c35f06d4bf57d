"""Tokens that are drawn otherwise than their request says, with vLLM 0.9.1's way of sampling in small."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL, VLLM

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

REQUESTS, VOCABULARY = 64, 40


@pytest.fixture(scope="module")
def draws() -> Iterator[Any]:
    folders = [str(INJECTED), str(REHEARSAL), str(VLLM)]
    sys.path[:0] = folders
    try:
        yield importlib.import_module("npu_rl_standins_vllm.draws")
    finally:
        del sys.path[: len(folders)]


class Pick(torch.nn.Module):
    """As vllm/v1/sample/ops/topk_topp_sampler.py: masks what is not among the top, and draws."""

    ignores: frozenset[str] = frozenset()

    def forward(self, logits: Any, _generators: Any, k: Any, p: Any) -> Any:
        order = logits.argsort(-1, descending=True)
        ranked = logits.gather(-1, order)
        if k is not None and "top_k" not in self.ignores:
            ranked = ranked.masked_fill(torch.arange(ranked.shape[-1]) >= k[:, None], -torch.inf)
        if p is not None and "top_p" not in self.ignores:
            chances = ranked.softmax(-1)
            ranked = ranked.masked_fill(chances.cumsum(-1) - chances >= p[:, None], -torch.inf)
        return order.gather(-1, torch.multinomial(ranked.softmax(-1), 1))[:, 0]


class Sampler(torch.nn.Module):
    """As vllm/v1/sample/sampler.py."""

    by = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.topk_topp_sampler = Pick()

    def sample(self, logits: Any, metadata: Any) -> Any:
        greedy = logits.argmax(-1)
        if metadata.all_greedy:
            return greedy
        logits = logits.div_((metadata.temperature * self.by).clamp(min=1e-5)[:, None])
        drawn = self.topk_topp_sampler(logits, {}, metadata.top_k, metadata.top_p)
        return torch.where(metadata.temperature < 1e-5, greedy, drawn)


def metadata(temperature: float = 0.9, top_k: int | None = None, top_p: float | None = None) -> Any:
    def each(value: float | None) -> Any:
        return None if value is None else torch.full((REQUESTS,), value)

    warm = each(temperature)
    warm[::2] = torch.where(warm[::2] < 1e-5, warm[::2], 0.7)  # not all requests are alike
    return SimpleNamespace(
        temperature=warm, top_k=each(top_k), top_p=each(top_p), all_greedy=bool((warm < 1e-5).all())
    )


@pytest.fixture
def sampler(draws: Any) -> Any:
    torch.manual_seed(1)
    module = SimpleNamespace(Sampler=type("Watched", (Sampler,), {}))
    draws.install_in(module)
    return module.Sampler()


def draw(sampler: Any, request: Any) -> Any:
    return sampler.sample(2 * torch.randn(REQUESTS, VOCABULARY), request)


@pytest.mark.parametrize("top_k", [None, 5, VOCABULARY])
@pytest.mark.parametrize("top_p", [None, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 0.9, 1.0])
def test_draws_as_configured_pass(sampler: Any, temperature: float, top_k: int, top_p: float) -> None:
    for _ in range(20):
        assert draw(sampler, metadata(temperature, top_k, top_p)).shape == (REQUESTS,)
    assert not sampler.topk_topp_sampler._forward_pre_hooks


def test_a_request_without_a_temperature_beside_others_is_greedy(sampler: Any) -> None:
    request = metadata()
    request.temperature[::3] = 0.0
    logits = torch.randn(REQUESTS, VOCABULARY)
    assert torch.equal(sampler.sample(logits.clone(), request)[::3], logits.argmax(-1)[::3])


def test_another_temperature_is_named(sampler: Any, draws: Any) -> None:
    sampler.by = 1 / 0.9
    with pytest.raises(draws.DrawError, match=r"at another temperature than 0\.7: its logits differ by "):
        draw(sampler, metadata())


@pytest.mark.parametrize(
    ("ignored", "request_", "said"),
    [
        ("top_k", {"top_k": 3}, r"vLLM drew token \d+ in order of likelihood, with top_k 3"),
        ("top_p", {"top_p": 0.5}, r"vLLM drew a token below 0\.\d+ of the probability, with top_p 0\.5"),
    ],
)
def test_a_setting_that_is_ignored_is_named(
    sampler: Any, draws: Any, ignored: str, request_: dict[str, Any], said: str
) -> None:
    sampler.topk_topp_sampler.ignores = frozenset({ignored})
    with pytest.raises(draws.DrawError, match=said):
        draw(sampler, metadata(**request_))
