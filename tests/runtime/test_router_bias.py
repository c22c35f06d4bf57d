"""The router's bias: what a common offset does to the choice of experts in bfloat16, and what is sent instead.

By trees' own routing functions, on more distributions: tests/patchsets/run_router_choices.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

torch = pytest.importorskip("torch")

from npu_rl.runtime.router_bias import keep_float32, without_offset  # noqa: E402

pytestmark = pytest.mark.rehearsal

EXPERTS, GROUPS, GROUP_TOPK, TOPK = 256, 8, 4, 8  # DeepSeek-V3's
NAME = "model.layers.3.mlp.gate.e_score_correction_bias"


def sent(bias: Any) -> Any:
    """What the rollout gets of `bias`."""
    ((name, found),) = without_offset([(NAME, bias)])
    assert name == NAME
    return found


def chosen(
    scores: Any,
    bias: Any,
    experts: int = EXPERTS,
    groups: int = GROUPS,
    of: int = GROUP_TOPK,
    left_out: float = -float("inf"),
) -> Any:
    """Which experts each token gets: [tokens, experts], bool. DeepSeek-V3's: a group counts by its two best.

    left_out: the score of the groups that are not kept. transformers has 0 (modeling_deepseek_v3.py, 4.52.4).
    """
    biased = scores + bias
    grouped = biased.view(-1, groups, experts // groups)
    best = grouped.topk(2, dim=-1).values.sum(-1).topk(of, dim=-1).indices
    kept = torch.zeros(len(scores), groups, dtype=torch.bool).scatter(1, best, True)
    masked = grouped.masked_fill(~kept[..., None], left_out).view(-1, experts)
    picked = masked.topk(min(TOPK, experts // 2), dim=-1).indices
    return torch.zeros_like(masked, dtype=torch.bool).scatter(1, picked, True)


def upstreams(bias: Any) -> Any:
    return bias.bfloat16().float()


def ours(bias: Any) -> Any:
    return sent(bias).bfloat16().float()


def test_a_step_of_the_update_arrives() -> None:
    """Training moves each entry by 0.001: in bfloat16 that is lost beside an offset of 4, and not without it."""
    before = 4 + torch.arange(16) / 160
    after = before + torch.where(torch.arange(16) % 2 == 0, 1e-3, -1e-3)
    assert torch.equal(upstreams(before), upstreams(after))
    assert not torch.equal(ours(before), ours(after))
    moved = (ours(after) - ours(before))[1:]
    assert (moved != 0).float().mean() > 0.5


# On this grid float32 is exact, so what changes is the offset's doing and not a rounding's.
Grid = some.integers(0, 255).map(lambda number: number / 256)


@given(
    some.lists(Grid, min_size=32, max_size=32),
    some.lists(Grid, min_size=32, max_size=32),
    some.integers(-16, 16),
)
@settings(max_examples=200)
def test_the_choice_is_that_of_exact_arithmetic(
    scores: list[float], spread: list[float], offset: int
) -> None:
    """Whatever the offset, by groups and without, and where groups that are left out have the score 0 as well."""
    # A sigmoid is above 0; neither two experts nor two groups are equal, between which torch's choice is open.
    tokens = torch.tensor([scores]) + 1 / 512 + torch.arange(32) / 2**16
    bias = torch.tensor(spread)
    for groups, of in ((4, 2), (1, 1)):
        want = chosen(tokens, bias, 32, groups, of)
        found = sent(bias + offset)
        assert torch.equal(chosen(tokens, found, 32, groups, of), want)
        if offset >= 0:
            assert torch.equal(chosen(tokens, found, 32, groups, of, left_out=0.0), want)


@given(some.sampled_from([0.5, 2, 20]), some.lists(some.floats(-1, 1, width=32), min_size=1, max_size=64))
@settings(max_examples=300)
def test_no_bias_that_can_be_chosen_is_larger_than_before(scale: float, values: list[float]) -> None:
    """So bfloat16's steps are nowhere coarser. An eighth at most is below 0 that was not before."""
    bias = scale * torch.tensor(values)
    found = sent(bias)
    larger = found[found.abs() > bias.abs()]
    assert len(larger) <= len(values) // 8 and bool((larger <= -1).all())
    assert int(((found < 0) & (bias >= 0)).sum()) <= len(values) // 8


def test_all_else_is_sent_as_it_is() -> None:
    gate = torch.randn(4, 3, dtype=torch.bfloat16)
    bias = torch.tensor([3.0, 4.5, 3.25], dtype=torch.bfloat16)
    found = dict(without_offset(iter([("model.layers.3.mlp.gate.weight", gate), (NAME, bias)])))
    assert found["model.layers.3.mlp.gate.weight"] is gate
    assert found[NAME].dtype == torch.float32 and found[NAME].tolist() == [0.0, 1.5, 0.25]
    assert bias.tolist() == [3.0, 4.5, 3.25]  # the actor's own


def test_weights_are_read_as_they_come() -> None:
    """The actor gathers one tensor after the other: none may be asked for before it is loaded."""
    asked = []

    def gathered() -> Any:
        for number in range(3):
            asked.append(number)
            yield f"{number}", torch.zeros(1)

    way = iter(without_offset(gathered()))
    assert asked == []
    next(way)
    assert asked == [0]


def test_the_actors_bias_is_float32_and_nothing_else() -> None:
    router = torch.nn.Linear(4, 3, bias=False)
    router.register_buffer("expert_bias", torch.ones(3))
    plain = torch.nn.Linear(4, 3)
    plain.expert_bias = None  # Megatron-core's router without one
    model = torch.nn.Sequential(router, plain).bfloat16()
    keep_float32([model])
    precise = {name for name, one in model.state_dict().items() if one.dtype != torch.bfloat16}
    assert precise == {"0.expert_bias"} and model[0].expert_bias.dtype == torch.float32


def test_off_is_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_RL_ROUTER_BIAS", "0")
    weights = iter([(NAME, torch.ones(2))])
    assert without_offset(weights) is weights
    router = torch.nn.Linear(4, 3)
    router.register_buffer("expert_bias", torch.ones(3))
    keep_float32([router.bfloat16()])
    assert router.expert_bias.dtype == torch.bfloat16
