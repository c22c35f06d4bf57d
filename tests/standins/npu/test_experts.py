"""Grouped products and the ways of tokens to experts and back, against loops over tokens and autograd."""

from __future__ import annotations

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
@pytest.mark.parametrize("one_weight", [True, False])
def test_grouped_matmul_of_rows(torch_npu: ModuleType, sizes: list[int], kind: str, one_weight: bool) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    weight = torch.randn(3, 4, 5, requires_grad=True)
    groups = torch.tensor(sizes) if kind == "sizes" else torch.tensor(sizes).cumsum(0)
    (got,) = torch_npu.npu_grouped_matmul(
        [x],
        [weight] if one_weight else list(weight),
        group_list=groups,
        group_list_type=int(kind == "sizes"),
        group_type=0,
        split_item=2,
    )
    owner = [expert for expert, size in enumerate(sizes) for _ in range(size)]
    rows = [x[i] @ weight[expert] for i, expert in enumerate(owner)]
    expected = torch.stack([*rows, *[torch.zeros(5)] * (6 - len(rows))])
    close(got, expected)
    if rows:
        same_gradients(got, expected, (x, weight))


def test_grouped_matmul_of_pairs_with_bias(torch_npu: ModuleType) -> None:
    x = [torch.randn(rows, 4) for rows in (2, 3)]
    weight, bias = [torch.randn(4, 5), torch.randn(4, 5)], [torch.randn(5), torch.randn(5)]
    got = torch_npu.npu_grouped_matmul(x, weight, bias=bias, group_type=-1)
    for mine, a, w, b in zip(got, x, weight, bias, strict=True):
        close(mine, torch.addmm(b, a, w))


def test_grouped_matmul_of_the_inner_dimension(torch_npu: ModuleType) -> None:
    x, y = torch.randn(4, 6).bfloat16(), torch.randn(6, 5).bfloat16()
    (got,) = torch_npu.npu_grouped_matmul([x], [y], group_list=[2, 2, 6], group_type=2, split_item=3)
    expected = torch.stack(
        [x[:, :2].float() @ y[:2].float(), torch.zeros(4, 5), x[:, 2:].float() @ y[2:].float()]
    )
    assert got.dtype == torch.bfloat16
    close(got, expected, 2e-2)


def test_grouped_matmul_refuses(torch_npu: ModuleType) -> None:
    x, w = [torch.zeros(4, 2)], [torch.zeros(2, 2, 3)]
    with pytest.raises(ValueError, match=r"npu_grouped_matmul: group_list \[3, 2\]"):
        torch_npu.npu_grouped_matmul(x, w, group_list=[3, 2], group_type=0)
    with pytest.raises(ValueError, match=r"doesn't divide 4 rows"):
        torch_npu.npu_grouped_matmul(x, w, group_list=[3, 5], group_type=0)
    with pytest.raises(ValueError, match="1 groups and 2 weights"):
        torch_npu.npu_grouped_matmul(x, w, group_list=[4], group_type=0)
    with pytest.raises(NotImplementedError, match=r"npu_grouped_matmul: scale=\[1\]"):
        torch_npu.npu_grouped_matmul(x, w, scale=[1], group_list=[4], group_type=0)


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
    close(mine[0], expected[0])
    assert (mine[1] is None) != with_probs
    if with_probs:
        close(mine[1], expected[1])

    rows = torch.randn(len(pairs), hidden, requires_grad=True)
    back, first, second, used = torch_npu._npu_moe_token_unpermute_with_routing_map(
        rows, places, [tokens, hidden], probs=probs, routing_map=chosen
    )
    close(back, summed_by_token(rows, pairs, probs, tokens))
    upstream = torch.randn_like(back)
    expected = torch.autograd.grad(back, [rows] if probs is None else [rows, probs], upstream)
    mine = torch_npu.npu_moe_token_unpermute_with_routing_map_grad(
        upstream,
        first,
        second,
        routing_map=chosen,
        permuted_tokens=None if probs is None else rows.detach(),
        probs=None if probs is None else probs.detach(),
        drop_and_pad=False,
        restore_shape=[tokens, hidden],
    )
    for a, b in zip(mine, expected, strict=False):
        close(a, b)
    if probs is not None:
        close(used, torch.stack([probs[t, e] for t in range(tokens) for e in range(experts) if chosen[t, e]]))
    again = torch_npu.npu_moe_token_unpermute_with_routing_map(
        rows, places, [tokens, hidden], probs=probs, routing_map=chosen
    )
    close(again, back)


@pytest.mark.parametrize("with_probs", [True, False])
def test_permute_with_routing_map_dropping_and_padding(torch_npu: ModuleType, with_probs: bool) -> None:
    tokens, experts, capacity, hidden = 6, 3, 2, 4
    chosen = routing(tokens, experts, 2)
    x = torch.randn(tokens, hidden, requires_grad=True)
    probs = torch.rand(tokens, experts, requires_grad=True) if with_probs else None
    got, got_probs, numbers = torch_npu.npu_moe_token_permute_with_routing_map(
        x, chosen, probs=probs, num_out_tokens=experts * capacity, drop_and_pad=True
    )
    pairs = []
    for e in range(experts):
        order = [t for t in range(tokens) if chosen[t, e]] + [t for t in range(tokens) if not chosen[t, e]]
        pairs += [(t, e) for t in order[:capacity]]
    assert numbers.tolist() == [t for t, _ in pairs]
    close(got, torch.stack([x[t] for t, _ in pairs]))
    upstream = torch.randn_like(got)
    weights = torch.randn(len(pairs)) if with_probs else None
    loss = (got * upstream).sum() + ((got_probs * weights).sum() if with_probs else 0)
    expected = torch.autograd.grad(loss, [x] if probs is None else [x, probs])
    mine = torch_npu.npu_moe_token_permute_with_routing_map_grad(
        upstream, weights, numbers, chosen, experts, tokens, True
    )
    for a, b in zip(mine, expected, strict=False):
        close(a, b)

    rows = torch.randn(len(pairs), hidden, requires_grad=True)
    back, index, ids, _ = torch_npu._npu_moe_token_unpermute_with_routing_map(
        rows, numbers, [tokens, hidden], probs=probs, routing_map=chosen, drop_and_pad=True
    )
    close(back, summed_by_token(rows, pairs, probs, tokens))
    upstream = torch.randn_like(back)
    expected = torch.autograd.grad(back, [rows] if probs is None else [rows, probs], upstream)
    mine = torch_npu.npu_moe_token_unpermute_with_routing_map_grad(
        upstream,
        index,
        permuted_token_id=ids,
        routing_map=chosen,
        permuted_tokens=None if probs is None else rows.detach(),
        probs=None if probs is None else probs.detach(),
        drop_and_pad=True,
        restore_shape=[tokens, hidden],
    )
    for a, b in zip(mine, expected, strict=False):
        close(a, b)


def test_permute_refuses_a_number_of_tokens_that_isnt_chosen(torch_npu: ModuleType) -> None:
    with pytest.raises(
        ValueError, match="npu_moe_token_permute_with_routing_map: 8 experts are chosen for 4 tokens"
    ):
        torch_npu.npu_moe_token_permute_with_routing_map(
            torch.zeros(4, 2), routing(4, 3, 2), num_out_tokens=4
        )


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
    with pytest.raises(NotImplementedError, match="npu_moe_token_permute: padded_mode=True"):
        torch_npu.npu_moe_token_permute(x, experts, padded_mode=True)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(6, 5, 2), (1, 8, 8), (4, 3, 1)])
def test_routing_for_inference_is_a_mixture_of_experts(
    torch_npu: ModuleType, tokens: int, experts: int, k: int
) -> None:
    """The ops in the order vllm-ascend calls them compute what a loop over tokens does."""
    x, logits = torch.randn(tokens, 4), torch.randn(tokens, experts)
    weight = torch.randn(experts, 4, 3)
    values, chosen, rows = torch_npu.npu_moe_gating_top_k_softmax(logits, None, k=k)
    assert chosen.dtype == rows.dtype == torch.int32
    best, who = logits.softmax(-1).topk(k)
    close(values, best)
    assert chosen.tolist() == who.tolist()
    assert rows.tolist() == [[j * tokens + t for j in range(k)] for t in range(tokens)]

    expanded, places, sorted_experts = torch_npu.npu_moe_init_routing(x, rows, chosen, tokens)
    assert sorted_experts.tolist() == sorted(chosen.flatten().tolist())
    ends = torch_npu.npu_moe_compute_expert_tokens(sorted_experts, experts)
    assert ends.tolist() == [sum(int(c) <= e for c in chosen.flatten()) for e in range(experts)]
    (products,) = torch_npu.npu_grouped_matmul(
        [expanded], [weight], group_list=ends.long(), group_type=0, split_item=2
    )
    skip, bias = torch.randn(tokens, 3), torch.randn(experts, 3)
    got = torch_npu.npu_moe_finalize_routing(
        products,
        skip1=skip,
        skip2=None,
        bias=bias,
        scales=values,
        expanded_src_to_dst_row=places,
        export_for_source_row=chosen,
    )
    expected = torch.stack(
        [
            skip[t] + sum(best[t, j] * (x[t] @ weight[who[t, j]] + bias[who[t, j]]) for j in range(k))
            for t in range(tokens)
        ]
    )
    close(got, expected)


def test_finished_rows_have_no_expert(torch_npu: ModuleType) -> None:
    finished = torch.tensor([True, False])
    _, chosen, _ = torch_npu.npu_moe_gating_top_k_softmax(torch.randn(2, 5), finished, k=3)
    assert chosen[0].tolist() == [5, 5, 5] and max(chosen[1].tolist()) < 5


def test_only_active_rows_are_expanded(torch_npu: ModuleType) -> None:
    rows = torch.arange(8, dtype=torch.int32).view(2, 4).T.contiguous()
    chosen = torch.tensor([[1, 0], [2, 1], [0, 2], [1, 2]], dtype=torch.int32)
    x = torch.arange(4.0).view(4, 1)
    expanded, places, experts = torch_npu.npu_moe_init_routing(x, rows, chosen, 2)
    assert expanded.flatten().tolist() == [0, 2, 0, 1]  # experts 0, 0, 1, 1
    assert experts.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    order = torch.empty(8, dtype=torch.long)
    order[places.long()] = torch.arange(8)
    assert (order % 4).tolist() == [0, 2, 0, 1, 3, 1, 2, 3]


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("norm", [0, 1])
@pytest.mark.parametrize("groups", [1, 4])
def test_gating_top_k_in_groups(torch_npu: ModuleType, groups: int, norm: int, mode: int) -> None:
    x, bias = torch.randn(9, 16), torch.randn(16)
    weights, experts, scores = torch_npu.npu_moe_gating_top_k(
        x,
        3,
        bias=bias,
        k_group=2 if groups > 1 else 1,
        group_count=groups,
        group_select_mode=mode,
        norm_type=norm,
        out_flag=True,
        routed_scaling_factor=2.5,
    )
    for t in range(9):
        score = 1 / (1 + (-x[t]).exp()) if norm else x[t].exp() / x[t].exp().sum()
        ranked = (score + bias).tolist()
        size = 16 // groups
        parts = [sorted(ranked[g * size : (g + 1) * size], reverse=True) for g in range(groups)]
        merit = [sum(part[:2]) if mode else part[0] for part in parts]
        best = sorted(range(groups), key=lambda g: -merit[g])[: 2 if groups > 1 else 1]
        allowed = [e for e in range(16) if e // size in best]
        expected = sorted(allowed, key=lambda e: -ranked[e])[:3]
        assert experts[t].tolist() == expected
        chosen = score[expected]
        close(weights[t], (chosen / chosen.sum() if norm else chosen) * 2.5)
        close(scores[t], score)
    assert experts.dtype == torch.int32
    with pytest.raises(NotImplementedError, match="npu_moe_gating_top_k: renorm=1"):
        torch_npu.npu_moe_gating_top_k(x, 3, renorm=1)
