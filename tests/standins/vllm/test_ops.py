"""Each function of the stand-ins against float64, or another way to the same result."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

TYPES = [torch.float32, torch.bfloat16]


def close(got: Any, expected: Any) -> None:
    """As near as the result's type allows: half a unit in the last place of bfloat16, some of float32."""
    tolerance = 2**-8 if got.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_silu_and_mul(standins: ModuleType, dtype: Any) -> None:
    x = torch.randn(3, 5, 16, dtype=dtype)
    out = torch.empty(3, 5, 8, dtype=dtype)
    torch.ops._C.silu_and_mul(out, x)
    gate, up = x.double()[..., :8], x.double()[..., 8:]
    close(out, gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("dtype", TYPES)
def test_rms_norm_and_with_a_residual(standins: ModuleType, dtype: Any) -> None:
    x, residual, weight = torch.randn(6, 32, dtype=dtype), torch.randn(6, 32, dtype=dtype), torch.randn(32)
    weight = weight.to(dtype)

    def expected(wide: Any) -> Any:
        return torch.nn.functional.rms_norm(wide, (32,), weight.double(), 1e-6)

    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, 1e-6)
    close(out, expected(x.double()))
    summed, normed = residual.clone(), x.clone()
    torch.ops._C.fused_add_rms_norm(normed, summed, weight, 1e-6)
    close(summed, x.double() + residual.double())
    close(normed, expected(summed.double()))  # of the sum as it was kept, as csrc/cpu/layernorm.cpp@0.9.1


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("with_key", [True, False])
def test_rotation_is_a_complex_product(standins: ModuleType, is_neox: bool, with_key: bool) -> None:
    tokens, head, width = 7, 24, 16
    positions = torch.randint(0, 50, (tokens,))
    angles = torch.arange(50)[:, None] * torch.rand(width // 2)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    query = torch.randn(tokens, 4 * head)
    key = torch.randn(tokens, 2 * head) if with_key else None

    def expected(flat: Any) -> Any:
        heads = flat.double().view(tokens, -1, head).clone()
        turned = heads[..., :width]
        pairs = turned.unflatten(-1, (2, -1)).transpose(-1, -2) if is_neox else turned.unflatten(-1, (-1, 2))
        by = torch.polar(torch.ones(1).double(), angles[positions].double())[:, None]
        result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * by)
        heads[..., :width] = (result.transpose(-1, -2) if is_neox else result).flatten(-2)
        return heads.view_as(flat)

    wanted = [expected(tensor) if tensor is not None else None for tensor in (query, key)]
    torch.ops._C.rotary_embedding(positions, query, key, head, cache, is_neox)
    for got, right in zip((query, key), wanted, strict=True):
        if right is not None:
            close(got, right)


def test_an_operator_that_there_is_none_of(standins: ModuleType) -> None:
    """It says its name, to `hasattr` as well as to a caller."""
    assert not hasattr(torch.ops._C, "init_shm_manager")
    for space, name in (("_C", "awq_gemm"), ("_moe_C", "topk_softmax"), ("_C_cache_ops", "swap_blocks")):
        with pytest.raises(NotImplementedError, match=rf"torch\.ops\.{space}\.{name} "):
            getattr(getattr(torch.ops, space), name)(torch.zeros(1))
    assert torch.ops.aten.add(torch.ones(1), 1).item() == 2
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        torch.ops.aten.no_such  # noqa: B018  torch's own namespaces are as they were


def a_cache(lengths: list[int], kv_heads: int, size: int, head: int) -> tuple[Any, Any, Any]:
    """(keys or values by sequence, a cache of NaN that has nothing yet, a block table with blocks in any order)."""
    tokens = [torch.randn(length, kv_heads, head) for length in lengths]
    per_sequence = [-(-length // size) for length in lengths]
    order = torch.randperm(sum(per_sequence)) + 1
    table = torch.zeros(len(lengths), max(per_sequence) + 2, dtype=torch.int32)
    for row, blocks in enumerate(order.split(per_sequence)):
        table[row, : len(blocks)] = blocks
    return tokens, torch.full((sum(per_sequence) + 1, kv_heads, size, head), math.nan), table


def attention(query: Any, keys: Any, values: Any, scale: float) -> Any:
    """Of one sequence's last tokens, one head after another, in float64 by torch's own function."""
    new, heads = query.shape[:2]
    repeat = heads // keys.shape[1]
    seen = torch.ones(new, len(keys)).tril(len(keys) - new).bool()
    wide = (
        query.double(),
        keys.double().repeat_interleave(repeat, 1),
        values.double().repeat_interleave(repeat, 1),
    )
    q, k, v = (tensor.transpose(0, 1) for tensor in wide)
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return result.transpose(0, 1)


@pytest.mark.parametrize("new", [[7, 1, 12, 5], [1, 1, 1, 1], [3, 1, 4, 2]])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_over_scattered_blocks(standins: ModuleType, kv_heads: int, new: list[int]) -> None:
    """Whole prompts, single tokens and chunks. What a cache holds behind a sequence's end is NaN here."""
    lengths, size, head, scale = [7, 1, 12, 33], 4, 8, 0.3
    paged = standins.paged
    keys, key_cache, table = a_cache(lengths, kv_heads, size, head)
    values, value_cache = [torch.randn_like(one) for one in keys], key_cache.clone()
    for row, length in enumerate(lengths):
        place = torch.arange(length)
        slots = (table[row].long()[place // size] * size + place % size).int()
        padded = torch.cat((slots, torch.tensor([-1], dtype=torch.int32)))  # a token that is padding
        with_padding = [torch.cat((one[row], torch.zeros(1, kv_heads, head))) for one in (keys, values)]
        paged.reshape_and_cache(*with_padding, key_cache, value_cache, padded)
    assert int(key_cache.isfinite().sum()) == sum(lengths) * kv_heads * head  # and nothing else was written

    query = torch.randn(sum(new), 4, head)
    out = torch.empty_like(query)
    queries = torch.tensor([0, *new]).cumsum(0).int()
    if max(new) == 1:
        mapping = torch.arange(kv_heads).repeat_interleave(4 // kv_heads).int()
        sizes = torch.tensor(lengths).int()
        paged.single_query_cached_kv_attention(
            out, query, key_cache, value_cache, mapping, scale, table, sizes, size, 33, None
        )
    else:
        sums = torch.tensor([0, *lengths]).cumsum(0).int()
        paged.flash_attn_varlen_func(
            out, query, key_cache, value_cache, queries, sums, 12, 33, scale, True, table, None
        )
    expected = torch.cat(
        [attention(*part, scale) for part in zip(query.split(new), keys, values, strict=True)]
    )
    close(out, expected)

    ops = torch.ops._C  # as 0.18.0 calls them
    of_server = [key_cache.clone().fill_(math.nan), value_cache.clone().fill_(math.nan)]
    slots = torch.cat(
        [
            table[row].long()[torch.arange(n) // size] * size + torch.arange(n) % size
            for row, n in enumerate(lengths)
        ]
    )
    ops.cpu_attn_reshape_and_cache(torch.cat(keys), torch.cat(values), *of_server, slots, "vec")
    plain = (None, -1, -1, table, 0.0, torch.empty(0), None)
    out.zero_()
    ops.cpu_attention_with_kv_cache(
        query, *of_server, out, queries, torch.tensor(lengths).int(), scale, True, *plain
    )
    close(out, expected)


def test_attention_refuses_what_it_does_not_compute(standins: ModuleType) -> None:
    cache, table = torch.zeros(2, 1, 4, 8), torch.zeros(1, 1, dtype=torch.int32)
    one, ends = torch.zeros(1, 1, 8), torch.tensor([0, 1])
    call = standins.paged.flash_attn_varlen_func
    with pytest.raises(NotImplementedError, match="alibi_slopes=Tensor"):
        call(one.clone(), one, cache, cache, ends, ends, 1, 1, 1.0, True, table, torch.ones(1))
    with pytest.raises(NotImplementedError, match="causal=False"):
        call(one.clone(), one, cache, cache, ends, ends, 1, 1, 1.0, False, table)
    with pytest.raises(NotImplementedError, match="window_size_left=3"):
        call(one.clone(), one, cache, cache, ends, ends, 1, 1, 1.0, True, table, None, window_size_left=3)
    for place, value, told in (
        (0, False, "causal=False"),
        (2, 4, "sliding_window_left=4"),
        (5, 0.5, "softcap=0.5"),
    ):
        given = [True, None, -1, -1, table, 0.0, torch.empty(0), None]
        given[place] = value
        with pytest.raises(NotImplementedError, match=told):
            torch.ops._C.cpu_attention_with_kv_cache(
                one.clone(), cache, cache, one.clone(), ends.int(), torch.tensor([1]).int(), 1.0, *given
            )


@pytest.mark.parametrize("dtype", TYPES)
def test_the_experts_of_all_ranks_add_up(standins: ModuleType, dtype: Any) -> None:
    tokens, hidden, inner, experts, top = 9, 16, 8, 6, 3
    x = torch.randn(tokens, hidden, dtype=dtype)
    w13 = (0.3 * torch.randn(experts, 2 * inner, hidden)).to(dtype)
    w2 = (0.3 * torch.randn(experts, hidden, inner)).to(dtype)
    weights = torch.rand(tokens, top)
    chosen = torch.stack([torch.randperm(experts)[:top] for _ in range(tokens)]).int()
    every = torch.einsum("th,eih->tei", x.double(), w13.double())  # all experts of all tokens
    gated = torch.nn.functional.silu(every[..., :inner]) * every[..., inner:]
    outputs = torch.einsum("tei,ehi->teh", gated, w2.double())
    wide = torch.zeros(tokens, experts).double().scatter_(1, chosen.long(), weights.double())
    expected = torch.einsum("te,teh->th", wide, outputs)
    # The products inside are rounded to the type, as compiled ones are.
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    mixture = standins.experts.expert_mixture
    alone = mixture(x, w13, w2, weights, chosen)
    assert alone.dtype == dtype
    torch.testing.assert_close(alone.double(), expected, **tolerance)

    total = torch.zeros(tokens, hidden).double()
    for mine in ([0, 1], [2, 3, 4], [5]):
        places = torch.full((experts,), -1, dtype=torch.int32)
        places[mine] = torch.arange(len(mine), dtype=torch.int32)
        total += mixture(x, w13[mine], w2[mine], weights, chosen, places).double()
    torch.testing.assert_close(total, expected, **tolerance)
