"""Adaptation swapped-states: a distributed checkpoint includes the optimizer state that MindSpeed swapped to the host.

Between two steps MindSpeed's SwapDistributedOptimizer keeps main parameters and moments in host memory, and their
tensors on the device have no storage (mindspeed/core/optimizer/swap_optimizer/swap_optimizer.py:127@7ff818c). It saves
and loads them only with Megatron's dp_zero_gather_scatter. verl saves with fully_sharded_model_space, which reads the
device's tensors (megatron/core/optimizer/distrib_optimizer.py:1293@core_v0.12.1), and fails at the state
max_exp_avg_sq, which is None without amsgrad.

Loading creates new parameter groups (torch.optim.Optimizer.load_state_dict). swap_adamw_step counts the step in these,
but reads step, lr and weight decay from those in `param_to_group_map`, which are the old ones (swap_optimizer.py:577
and 592; MindSpeed's own loading renews them, :391): the first step after a resume would end with KeyError 'step'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .switches import enabled
from .used import count

SLUG = "swapped-states"


def read(optimizer: Any, model_param: Any, upstream: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return a model parameter's main parameter and its states other than None, from the device or the host.

    optimizer: MindSpeed's SwapDistributedOptimizer. upstream: Megatron's method.
    """
    if not enabled(SLUG) or optimizer.config.use_precision_aware_optimizer:
        return upstream(model_param)
    host = _on_host(optimizer, _main(optimizer, model_param))
    if host is not None:
        count(SLUG)
    found = upstream(model_param) if host is None else host
    return {key: value for key, value in found.items() if value is not None}


def write(
    optimizer: Any, model_param: Any, tensors: dict[str, Any], upstream: Callable[[Any, dict[str, Any]], None]
) -> None:
    """Load a model parameter's main parameter and states, on the device or the host.

    optimizer: MindSpeed's SwapDistributedOptimizer. upstream: Megatron's method.
    """
    if not enabled(SLUG) or optimizer.config.use_precision_aware_optimizer:
        upstream(model_param, tensors)
        return
    main = _main(optimizer, model_param)
    host = _on_host(optimizer, main)
    if host is not None:
        count(SLUG)
    targets = {"param": main, **optimizer.optimizer.state[main]} if host is None else host
    for key, value in targets.items():
        if value is not None:
            value.copy_(tensors[key])


def renew_groups(optimizer: Any) -> None:
    """Make the step read the parameter groups that were loaded."""
    if enabled(SLUG):
        inner = optimizer.optimizer
        inner.param_to_group_map.update(
            {one: group for group in inner.param_groups for one in group["params"]}
        )


def _main(optimizer: Any, model_param: Any) -> Any:
    group, place = optimizer.model_param_group_index_map[model_param]
    return optimizer.optimizer.param_groups[group]["params"][place]


def _on_host(optimizer: Any, main: Any) -> dict[str, Any] | None:
    """Return the host copy of a main parameter without device storage; None if it has device storage."""
    import torch

    host: dict[str, Any] | None = optimizer.param_to_cpu_states_map.get(main)
    if host is None or main.untyped_storage().size():
        return None
    torch.cuda.synchronize()  # copies to the host are not awaited; torch.cuda is torch.npu where MindSpeed is
    return host
