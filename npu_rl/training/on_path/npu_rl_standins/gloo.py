"""gloo where the trainer expects HCCL or NCCL.

verl asks for "cpu:gloo,cpu:gloo" (the second part is the device's; verl/workers/fsdp_workers.py:123 at 0.5.0),
and gathers 0-d tensors into 1-d ones, which gloo refuses and HCCL doesn't
(verl/utils/profiler/performance.py, topk_reduce_ratio_min_max). Real: every collective's result. Not proven:
anything about HCCL.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .hooks import after_import
from .used import count


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _change)


def _change(module: ModuleType) -> None:
    module.init_process_group = _with_one_backend(module.init_process_group)  # type: ignore[attr-defined]
    module.all_gather = _with_equal_shapes(module.all_gather)  # type: ignore[attr-defined]


def _with_one_backend(original: Any) -> Any:
    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        if isinstance(backend, str) and "," in backend:
            count("gloo.init_process_group")
            backend = ",".join(dict.fromkeys(backend.split(",")))
        return original(backend, *arguments, **named)

    return init_process_group


def _with_equal_shapes(original: Any) -> Any:
    def all_gather(tensor_list: Any, tensor: Any, *arguments: Any, **named: Any) -> Any:
        if tensor_list and tensor_list[0].shape != tensor.shape and tensor_list[0].numel() == tensor.numel():
            count("gloo.all_gather")
            tensor = tensor.reshape(tensor_list[0].shape)
        return original(tensor_list, tensor, *arguments, **named)

    return all_gather
