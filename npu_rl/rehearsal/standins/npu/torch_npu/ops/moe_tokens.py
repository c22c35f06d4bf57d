"""Ordering of tokens by expert and back, in training."""

# ruff: noqa: ARG001  the signatures are torch_npu's

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..missing import refuse
from ..registry import op, wide

Tensors2 = tuple[torch.Tensor, torch.Tensor]


@op
def npu_moe_token_permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> Tensors2:
    """Tokens (T, H), each as often as it has experts in indices (T, K) or (T,), ordered by expert.

    Differentiable in tokens. Not supported: padded_mode.
    Source: mindspeed/ops/csrc/cann/npu_moe_token_permute.cpp@7ff818c.

    Returns:
        The tokens, at most num_out_tokens of them (0 or None: all; below 0: all but these), and where each (token,
        choice) went, int32 (T * K,), which is not cut.
    """
    refuse("npu_moe_token_permute", padded_mode=padded_mode)
    choices = 1 if indices.dim() == 1 else indices.shape[1]
    order = indices.flatten().argsort(stable=True)
    wanted = num_out_tokens or 0
    kept = min(wanted, order.numel()) if wanted > 0 else order.numel() + wanted
    return tokens.index_select(0, order[:kept] // choices), order.argsort().int()


@op
def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """Tokens in their first order, the choices of each summed with weights probs (T, K).

    sorted_indices is npu_moe_token_permute's; choices that it sends past the last token count as zero. Differentiable
    in permuted_tokens and probs. Not supported: padded_mode.
    Source: mindspeed/ops/csrc/cann/npu_moe_token_unpermute.cpp@7ff818c.
    """
    refuse("npu_moe_token_unpermute", padded_mode=padded_mode)
    choices = 1 if probs is None else probs.shape[1]
    there = sorted_indices < permuted_tokens.shape[0]
    rows = wide(permuted_tokens).index_select(0, sorted_indices.long() * there) * there.unsqueeze(1)
    rows = rows.unflatten(0, (-1, choices))
    if probs is not None:
        rows = rows * wide(probs).unsqueeze(-1)
    return rows.sum(1).to(permuted_tokens.dtype)


def _chosen(routing_map: torch.Tensor) -> torch.Tensor:
    """Return routing_map (T, E) as bool with experts first."""
    return routing_map.bool().T.contiguous()


@op
def npu_moe_token_permute_with_routing_map(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    *,
    probs: torch.Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Tokens (T, H) ordered by expert, for routing_map (T, E): bool or int8, 1 where an expert is chosen.

    Every token has to have num_out_tokens / T experts. Differentiable in tokens and probs. Not supported: drop_and_pad.
    Source: op-plugin test_npu_moe_token_permute_with_routing_map.py; caller
    mindspeed/te/pytorch/permutation.py@7ff818c.

    Returns:
        The tokens; probs (T, E) in the same order, or None; where each (token, expert) went, int32.
    """
    refuse("npu_moe_token_permute_with_routing_map", drop_and_pad=drop_and_pad)
    count = routing_map.shape[0]
    wanted = tokens.shape[0] if num_out_tokens is None else num_out_tokens
    chosen = _chosen(routing_map)
    numbers = chosen.nonzero()[:, 1]
    if numbers.numel() != wanted // count * count:
        raise ValueError(
            f"torch_npu.npu_moe_token_permute_with_routing_map: {numbers.numel()} experts are chosen for {count} "
            f"tokens, num_out_tokens is {wanted}"
        )
    permuted_probs = None if probs is None else probs.T.masked_select(chosen)
    return tokens.index_select(0, numbers), permuted_probs, numbers.argsort(stable=True).int()


@op
def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: torch.Tensor,
    probs_grad: torch.Tensor | None,
    sorted_indices: torch.Tensor,
    routing_map: torch.Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of tokens (T, H) and, given probs_grad, of probs (T, E).

    The op is npu_moe_token_permute_with_routing_map. Not supported: drop_and_pad.
    Source: caller mindspeed/te/pytorch/permutation.py@7ff818c.
    """
    refuse("npu_moe_token_permute_with_routing_map_grad", drop_and_pad=drop_and_pad)
    gradient, index = wide(permuted_token_out_grad), sorted_indices.long()
    of_tokens = gradient.index_select(0, index).unflatten(0, (tokens_num, -1)).sum(1)
    of_probs = None
    if probs_grad is not None:
        of_probs = probs_grad.new_zeros(experts_num, tokens_num)
        of_probs = of_probs.masked_scatter(_chosen(routing_map), probs_grad).T
    return of_tokens.to(permuted_token_out_grad.dtype), of_probs


@op
def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: Sequence[int],
    *,
    probs: torch.Tensor | None = None,
    routing_map: torch.Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens in their first order, restore_shape (T, H), each the sum over its experts, with weights probs (T, E).

    sorted_indices is the third result of npu_moe_token_permute_with_routing_map. Differentiable in permuted_tokens and
    probs. Not supported: drop_and_pad. Source: op-plugin test_npu_moe_token_unpermute_with_routing_map.py.

    Returns:
        The tokens; sorted_indices twice (an NPU returns nothing meaningful there); the weights that were used.
    """
    refuse("npu_moe_token_unpermute_with_routing_map", drop_and_pad=drop_and_pad)
    rows = wide(permuted_tokens).index_select(0, sorted_indices.long()).unflatten(0, (restore_shape[0], -1))
    used = None
    if probs is not None and routing_map is not None:
        used = probs.masked_select(routing_map.bool())
        rows = rows * wide(used).view(restore_shape[0], -1, 1)
    return rows.sum(1).to(permuted_tokens.dtype), sorted_indices, sorted_indices, used


@op
def npu_moe_token_unpermute_with_routing_map(*arguments: Any, **named: Any) -> torch.Tensor:
    """Tokens in their first order: the first result of _npu_moe_token_unpermute_with_routing_map."""
    result: torch.Tensor = inspect.unwrap(_npu_moe_token_unpermute_with_routing_map)(*arguments, **named)[0]
    return result


@op
def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: torch.Tensor,
    out_index: torch.Tensor,
    permuted_token_id: torch.Tensor,
    routing_map: torch.Tensor | None,
    permuted_tokens: torch.Tensor | None,
    probs: torch.Tensor | None,
    drop_and_pad: bool,
    restore_shape: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of permuted_tokens and, given probs, of probs.

    The op is _npu_moe_token_unpermute_with_routing_map; out_index and permuted_token_id are sorted_indices. Not
    supported: drop_and_pad. Source: caller mindspeed/te/pytorch/permutation.py@7ff818c.
    """
    refuse("npu_moe_token_unpermute_with_routing_map_grad", drop_and_pad=drop_and_pad)
    upstream = wide(unpermuted_tokens_grad)
    places = out_index.long()
    owners = torch.arange(restore_shape[0]).repeat_interleave(places.numel() // restore_shape[0])
    of_rows = upstream.index_select(0, owners)
    of_probs = None
    if probs is not None and permuted_tokens is not None and routing_map is not None:
        products = (of_rows * wide(permuted_tokens).index_select(0, places)).sum(-1)
        of_probs = upstream.new_zeros(probs.shape).masked_scatter(routing_map.bool(), products)
        of_probs = of_probs.to(unpermuted_tokens_grad.dtype)
        of_rows = of_rows * wide(probs).masked_select(routing_map.bool()).unsqueeze(1)
    of_permuted = torch.empty_like(of_rows).index_copy(0, places, of_rows)
    return of_permuted.to(unpermuted_tokens_grad.dtype), of_probs
