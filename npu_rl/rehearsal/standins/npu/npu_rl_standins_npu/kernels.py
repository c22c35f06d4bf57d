"""MindSpeed's own Triton kernels that rehearsals reach, in plain torch; every other one raises with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_rl_standins.used import count

if TYPE_CHECKING:
    import torch

MODULES = ("mindspeed.ops.triton.sort_chunks_by_idx",)


def install_in(module: Any) -> None:
    """Put the kernels in the place of the placeholder's names (torch_npu.missing)."""
    module.moe_sort_chunks_by_index = moe_sort_chunks_by_index
    module.moe_sort_chunks_by_index_with_probs = moe_sort_chunks_by_index_with_probs


def moe_sort_chunks_by_index(
    inp: torch.Tensor, split_sizes: torch.Tensor, sorted_index: torch.Tensor
) -> torch.Tensor:
    """Return the chunks of rows, of these sizes, in the order of their indices.

    Differentiable. Source: mindspeed/ops/triton/sort_chunks_by_idx.py:300@e4772499.
    """
    import torch

    count("mindspeed.moe_sort_chunks_by_index")
    chunks = inp.split(split_sizes.tolist())
    return torch.cat([chunks[index] for index in sorted_index.tolist()])


def moe_sort_chunks_by_index_with_probs(
    inp: torch.Tensor, probs: torch.Tensor, split_sizes: torch.Tensor, sorted_index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as moe_sort_chunks_by_index does (the same file:323)."""
    return (
        moe_sort_chunks_by_index(inp, split_sizes, sorted_index),
        moe_sort_chunks_by_index(probs, split_sizes, sorted_index),
    )
