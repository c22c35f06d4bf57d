"""Grouped products and the ways of tokens to experts and back, against loops over tokens and autograd."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert got.shape == expected.shape
    torch.testing.assert_close(got.float(), expected.float(), rtol=tolerance, atol=tolerance)


def same_gradients(got: Any, expected: Any, inputs: tuple[Any, ...]) -> None:
    upstream = torch.randn_like(got)
    gradients = (torch.autograd.grad(output, inputs, upstream) for output in (got, expected))
    for mine, theirs in zip(*gradients, strict=True):
        close(mine, theirs)


def summed_by_token(rows: Any, pairs: list[tuple[int, int]], probs: Any, tokens: int) -> Any:
    """Return each token's sum of its experts' rows, by their probabilities if there are any."""
    whole = [torch.zeros(rows.shape[1])] * tokens
    for row, (t, e) in zip(rows, pairs, strict=True):
        whole[t] = whole[t] + (row if probs is None else row * probs[t, e])
    return torch.stack(whole)


@pytest.mark.parametrize("sizes", [[2, 0, 3], [5, 0, 0], [1, 1, 1], [0, 0, 0]])
@pytest.mark.parametrize("kind", ["ends", "sizes"])
def test_grouped_matmul_of_rows(torch_npu: ModuleType, sizes: list[int], kind: str) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    weight = torch.randn(3, 4, 5, requires_grad=True)
    groups = torch.tensor(sizes) if kind == "sizes" else torch.tensor(sizes).cumsum(0)
    named = {"group_list_type": int(kind == "sizes"), "group_type": 0, "split_item": 2}
    (got,) = torch_npu.npu_grouped_matmul([x], [weight], group_list=groups, **named)
    (of_list,) = torch_npu.npu_grouped_matmul([x], list(weight), group_list=groups, **named)
    assert torch.equal(got, of_list)
    owner = [expert for expert, size in enumerate(sizes) for _ in range(size)]
    rows = [x[i] @ weight[expert] for i, expert in enumerate(owner)]
    expected = torch.stack([*rows, *[torch.zeros(5)] * (6 - len(rows))])
    close(got, expected)
    if rows:
        same_gradients(got, expected, (x, weight))


def test_grouped_matmul_of_the_inner_dimension(torch_npu: ModuleType) -> None:
    x, y = torch.randn(4, 5), torch.randn(5, 3)
    named = {"group_list_type": 1, "group_type": 2, "split_item": 3}
    (got,) = torch_npu.npu_grouped_matmul([x], [y], group_list=torch.tensor([2, 0, 3]), **named)
    close(got, torch.stack([x[:, :2] @ y[:2], torch.zeros(4, 3), x[:, 2:] @ y[2:]]))


def test_chunks_are_sorted_with_their_probabilities(
    torch_npu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mindspeed/ops").mkdir(parents=True)
    for package in ("mindspeed", "mindspeed/ops"):
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mindspeed", raising=False)
    kernels = importlib.import_module("mindspeed.ops.triton.sort_chunks_by_idx")
    other = importlib.import_module("mindspeed.ops.triton.l2norm")
    with pytest.raises(NotImplementedError, match=r"mindspeed\.ops\.triton\.l2norm\.l2norm"):
        other.l2norm(torch.ones(2))

    x, probs = torch.randn(5, 2, requires_grad=True), torch.rand(5)
    got, sorted_probs = kernels.moe_sort_chunks_by_index_with_probs(
        x, probs, torch.tensor([2, 0, 3]), torch.tensor([2, 0, 1])
    )
    order = [2, 3, 4, 0, 1]
    close(got, x[order])
    close(sorted_probs, probs[order])
    same_gradients(got, x[order], (x,))


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"group_list": [3, 2]}, r"group_list \[3, 2\]"), ({"group_list": [3, 5]}, "doesn't divide 4 rows"),
        ({"group_list": [4]}, "1 groups and 2 weights"), ({"scale": [1]}, r"scale=\[1\]"),
        ({"bias": [torch.zeros(3)]}, "bias="), ({"group_type": 1}, "group_type=1"),
        ({"group_type": -1}, "group_type=-1"), ({"split_item": 0}, "split_item=0"),
        ({"x": [torch.zeros(2, 2)] * 2}, "2 tensors"),
    ],
)  # fmt: skip
def test_grouped_matmul_refuses(torch_npu: ModuleType, named: dict[str, Any], told: str) -> None:
    call = {"x": [torch.zeros(4, 2)], "weight": [torch.zeros(2, 2, 3)], "group_type": 0, "split_item": 2}
    with pytest.raises((ValueError, NotImplementedError), match=rf"(?s)npu_grouped_matmul: .*{told}"):
        torch_npu.npu_grouped_matmul(**{**call, "group_list": [2, 4], **named})


def routing(tokens: int, experts: int, choices: int) -> Any:
    chosen = torch.stack([torch.randperm(experts)[:choices] for _ in range(tokens)])
    return torch.zeros(tokens, experts, dtype=torch.bool).scatter(1, chosen, True)


@pytest.mark.parametrize(("tokens", "experts", "choices"), [(5, 4, 2), (7, 3, 1), (4, 6, 6)])
@pytest.mark.parametrize("with_probs", [True, False])
def test_permute_with_routing_map_there_and_back(
    torch_npu: ModuleType, tokens: int, experts: int, choices: int, with_probs: bool
) -> None:
    chosen, hidden = routing(tokens, experts, choices), 3
    x = torch.randn(tokens, hidden, requires_grad=True)
    probs = torch.rand(tokens, experts, requires_grad=True) if with_probs else None
    got, got_probs, places = torch_npu.npu_moe_token_permute_with_routing_map(
        x, chosen.to(torch.int8), probs=probs, num_out_tokens=tokens * choices
    )
    pairs = [(t, e) for e in range(experts) for t in range(tokens) if chosen[t, e]]
    close(got, torch.stack([x[t] for t, _ in pairs]))
    by_token = sorted(range(len(pairs)), key=lambda i: pairs[i])
    assert places.tolist() == by_token and places.dtype == torch.int32
    if probs is not None:
        close(got_probs, torch.stack([probs[pair] for pair in pairs]))

    # The gradient op that MindSpeed calls must be autograd's.
    upstream = torch.randn_like(got)
    weights = torch.randn(len(pairs)) if with_probs else None
    loss = (got * upstream).sum() + ((got_probs * weights).sum() if with_probs else 0)
    expected = torch.autograd.grad(loss, [x] if probs is None else [x, probs])
    mine = torch_npu.npu_moe_token_permute_with_routing_map_grad(
        upstream, weights, places, chosen, experts, tokens, False
    )
    assert (mine[1] is None) != with_probs
    for a, b in zip(mine, expected, strict=False):
        close(a, b)

    rows = torch.randn(len(pairs), hidden, requires_grad=True)
    call = (rows, places, [tokens, hidden])
    back, first, second, used = torch_npu._npu_moe_token_unpermute_with_routing_map(
        *call, probs=probs, routing_map=chosen
    )
    close(back, summed_by_token(rows, pairs, probs, tokens))
    again = torch_npu.npu_moe_token_unpermute_with_routing_map(*call, probs=probs, routing_map=chosen)
    close(again, back)
    upstream = torch.randn_like(back)
    expected = torch.autograd.grad(back, [rows] if probs is None else [rows, probs], upstream)
    given = (None, None) if probs is None else (rows.detach(), probs.detach())
    mine = torch_npu.npu_moe_token_unpermute_with_routing_map_grad(
        upstream, first, second, chosen, *given, False, [tokens, hidden]
    )
    for a, b in zip(mine, expected, strict=False):
        close(a, b)
    if probs is not None:
        close(used, torch.stack([probs[t, e] for t in range(tokens) for e in range(experts) if chosen[t, e]]))


def test_permute_refuses(torch_npu: ModuleType) -> None:
    call = (torch.zeros(4, 2), routing(4, 3, 2))
    with pytest.raises(ValueError, match="routing_map: 8 experts are chosen for 4 tokens"):
        torch_npu.npu_moe_token_permute_with_routing_map(*call, num_out_tokens=4)
    with pytest.raises(NotImplementedError, match="routing_map: drop_and_pad=True"):
        torch_npu.npu_moe_token_permute_with_routing_map(*call, num_out_tokens=8, drop_and_pad=True)
    with pytest.raises(NotImplementedError, match="npu_moe_token_permute: padded_mode=True"):
        torch_npu.npu_moe_token_permute(torch.zeros(4, 2), torch.zeros(4, 2), padded_mode=True)


@pytest.mark.parametrize("kept", [None, 0, 5, -3, 99])
def test_token_permute_and_unpermute(torch_npu: ModuleType, kept: int | None) -> None:
    tokens, choices, hidden = 4, 2, 3
    experts = torch.stack([torch.randperm(5)[:choices] for _ in range(tokens)])
    x = torch.randn(tokens, hidden, requires_grad=True)
    got, places = torch_npu.npu_moe_token_permute(x, experts, kept)
    pairs = sorted((int(experts[t, j]), t * choices + j) for t in range(tokens) for j in range(choices))
    length = {None: 8, 0: 8, 5: 5, -3: 5, 99: 8}[kept]
    close(got, torch.stack([x[source // choices] for _, source in pairs[:length]]))
    assert [pairs[place][1] for place in places.tolist()] == list(range(8)) and places.dtype == torch.int32

    probs = torch.rand(tokens, choices, requires_grad=True)
    back = torch_npu.npu_moe_token_unpermute(got, places, probs)
    there = {source for _, source in pairs[:length]}
    expected = torch.stack(
        [
            sum((x[t] * probs[t, j] for j in range(choices) if t * choices + j in there), torch.zeros(hidden))
            for t in range(tokens)
        ]
    )
    close(back, expected)
    same_gradients(back, expected, (x, probs))
