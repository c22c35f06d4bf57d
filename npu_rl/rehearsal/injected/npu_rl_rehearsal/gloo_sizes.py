"""Collectives over parts of unequal size, which gloo doesn't support; parts are padded and cut.

Megatron-core's mixture of experts uses them between expert tensor ranks. It turns the split sizes of an all-to-all
into lists only for CUDA tensors, so that is done here, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

STOOD_IN = ("gloo's collectives over parts of unequal size: padded",)


def install() -> None:
    """Replace `all_gather`, `reduce_scatter` and `all_to_all_single` of torch.distributed."""
    dist.all_gather = _padded_all_gather(dist.all_gather)
    dist.reduce_scatter = _padded_reduce_scatter(dist.reduce_scatter)
    dist.all_to_all_single = _all_to_all_with_lists(dist.all_to_all_single)


def _padded_all_gather(gather: Any) -> Any:
    def all_gather(outputs: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        longest = max(len(part) for part in outputs) if given.dim() else 0
        if all(part.shape == given.shape for part in outputs):
            return gather(outputs, given, *args, **kwargs)
        whole = [_padded(part, longest) for part in outputs]
        done = gather(whole, _padded(given, longest), *args, **kwargs)
        for part, padded in zip(outputs, whole, strict=True):
            part.copy_(padded[: len(part)])
        return done

    return all_gather


def _padded_reduce_scatter(scatter: Any) -> Any:
    def reduce_scatter(output: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if all(part.shape == output.shape for part in inputs):
            return scatter(output, inputs, *args, **kwargs)
        longest = max(len(part) for part in inputs)
        whole = _padded(output, longest)
        done = scatter(whole, [_padded(part, longest) for part in inputs], *args, **kwargs)
        output.copy_(whole[: len(output)])
        return done

    return reduce_scatter


def _all_to_all_with_lists(exchange: Any) -> Any:
    def all_to_all_single(
        output: Any, given: Any, output_split_sizes: Any = None, input_split_sizes: Any = None, **kwargs: Any
    ) -> Any:
        return exchange(output, given, _as_list(output_split_sizes), _as_list(input_split_sizes), **kwargs)

    return all_to_all_single


def _padded(part: Any, length: int) -> Any:
    padded = torch.zeros(length, *part.shape[1:], dtype=part.dtype)
    padded[: len(part)] = part.detach()
    return padded


def _as_list(sizes: Any) -> Any:
    return sizes.tolist() if hasattr(sizes, "tolist") else sizes
