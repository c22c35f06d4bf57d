"""gloo in place of HCCL or NCCL.

verl asks for "cpu:gloo,cpu:gloo" (the second part is the device's; verl/workers/fsdp_workers.py:123 at 0.5.0), and
gathers 0-d tensors into 1-d ones, which gloo refuses and HCCL does not (verl/utils/profiler/performance.py,
topk_reduce_ratio_min_max). Megatron-core names NCCL's backend and options for its groups
(megatron/core/parallel_state.py, create_group at 0.12.1), and leaves the sizes of an uneven all-to-all as tensors
unless they are on CUDA. cann-recipes-train's verl_patches name NCCL for the default group
(verl_patches/train_engine/initialize_training.py at bcd3be7) and exchange tensors of different shapes, which gloo
refuses (verl_patches/utils/reshard.py). Real: every collective's result. Not proven: anything about HCCL.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .unsupported import UnsupportedArgument
from .used import count


def _install_in(module: ModuleType) -> None:
    module.init_process_group = _with_one_backend(module.init_process_group)  # type: ignore[attr-defined]
    module.all_gather = _with_equal_shapes(module.all_gather)  # type: ignore[attr-defined]
    module.new_group = _with_gloo_backend(module.new_group)  # type: ignore[attr-defined]
    module.all_to_all_single = _with_plain_sizes(module.all_to_all_single)  # type: ignore[attr-defined]
    module.all_to_all = _through_one_tensor(module.all_to_all_single)  # type: ignore[attr-defined]


def _with_one_backend(original: Any) -> Any:
    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        if isinstance(backend, str) and "," in backend:
            count("gloo.init_process_group")
            backend = ",".join(dict.fromkeys(backend.split(",")))
        elif backend in ("nccl", "hccl"):
            count("gloo.init_process_group")
            backend = "gloo"
        return original(backend, *arguments, **named)

    return init_process_group


def _with_equal_shapes(original: Any) -> Any:
    def all_gather(tensor_list: Any, tensor: Any, *arguments: Any, **named: Any) -> Any:
        if tensor_list and tensor_list[0].shape != tensor.shape and tensor_list[0].numel() == tensor.numel():
            count("gloo.all_gather")
            tensor = tensor.reshape(tensor_list[0].shape)
        return original(tensor_list, tensor, *arguments, **named)

    return all_gather


def _with_gloo_backend(original: Any) -> Any:
    def new_group(*arguments: Any, **named: Any) -> Any:
        if named.get("backend") in ("nccl", "hccl") or named.get("pg_options") is not None:
            count("gloo.new_group")
            named = {**named, "backend": "gloo", "pg_options": None}
        return original(*arguments, **named)

    return new_group


def _with_plain_sizes(original: Any) -> Any:
    def all_to_all_single(
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        sizes = [output_split_sizes, input_split_sizes]
        if any(hasattr(size, "tolist") for size in sizes):
            count("gloo.all_to_all_single")
            sizes = [size.tolist() if hasattr(size, "tolist") else size for size in sizes]
        return original(output, input, *sizes, *rest, **named)

    return all_to_all_single


def _through_one_tensor(all_to_all_single: Any) -> Any:
    def all_to_all(
        output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
    ) -> None:
        """Exchange tensors of any shapes with a group's ranks, concatenated to flat buffers."""
        import torch

        if async_op:
            raise UnsupportedArgument("torch.distributed.all_to_all", "async_op", async_op)
        count("gloo.all_to_all")
        received_sizes, sent_sizes = (
            [tensor.numel() for tensor in tensors] for tensors in (output_tensor_list, input_tensor_list)
        )
        sent = torch.cat([tensor.reshape(-1) for tensor in input_tensor_list])
        received = sent.new_empty(sum(received_sizes))
        all_to_all_single(received, sent, received_sizes, sent_sizes, group=group)
        for tensor, part in zip(output_tensor_list, received.split(received_sizes), strict=True):
            tensor.copy_(part.reshape(tensor.shape))

    return all_to_all


HOOKS = {"torch.distributed.distributed_c10d": _install_in}
