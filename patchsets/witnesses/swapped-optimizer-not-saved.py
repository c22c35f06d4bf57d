"""Show whether a distributed checkpoint holds an optimizer that MindSpeed has swapped to the host, on two gloo ranks.

Real: MindSpeed's SwapDistributedOptimizer and swap_adamw_step, which its feature swap_optimizer puts in place
(mindspeed/features_manager/optimizer/swap_optimizer_feature.py:22@7ff818c), and Megatron's distributed checkpoint, with
the optimizer's sharded_state_dict as verl calls it (verl/utils/checkpoint/megatron_checkpoint_manager.py:251@55e3c5b).
Made here: the fused operator of Adam, which is compiled for NPUs.

Two ranks train three steps, save, load into a new model and optimizer, and take the fourth step; so does the one that
was never stopped. What is compared is the model's parameter, to the bit.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

from witness_common import (
    distributed_model,
    distributed_optimizer,
    fit_later_torch,
    join_ranks,
    make_apex,
    run_ranks,
    show,
    train,
)

STAND_INS = ("npu",)

RANKS, SIZE = 2, 512


def adam(
    main: Any, grad: Any, mean: Any, square: Any, most: Any, step: Any, lr: float, beta1: float, beta2: float,
    decay: float, eps: float, amsgrad: bool, maximize: bool,
) -> None:  # fmt: skip
    """Stand in for npu_apply_fused_adamw_v2."""
    count = float(step)
    mean.lerp_(grad.float(), 1 - beta1)
    square.lerp_(grad.float() ** 2, 1 - beta2)
    main.mul_(1 - lr * decay)
    main.addcdiv_(mean / (1 - beta1**count), (square / (1 - beta2**count)).sqrt() + eps, value=-lr)


def of_the_tree() -> None:
    """Install MindSpeed's optimizer as its feature does."""
    import torch
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    make_apex(FusedAdam=torch.optim.AdamW)
    import megatron.core.optimizer
    from megatron.core.optimizer import distrib_optimizer
    from mindspeed.core.optimizer import adamw
    from mindspeed.core.optimizer.swap_optimizer import swap_optimizer

    swap_optimizer.npu_apply_fused_adamw_v2 = adam
    swap_optimizer.get_args = lambda: SimpleNamespace(swap_optimizer_times=16)  # MindSpeed's default
    adamw.AdamW.step = swap_optimizer.swap_adamw_step
    for module in (megatron.core.optimizer, distrib_optimizer):
        module.Adam = adamw.AdamW
        module.DistributedOptimizer = swap_optimizer.SwapDistributedOptimizer
    fit_later_torch()


def made() -> tuple[Any, Any]:
    """Return the same model of one parameter each time, with its optimizer."""
    import torch

    weight = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)).bfloat16()
    model = distributed_model({"weight": weight}, bf16=True, params_dtype=torch.bfloat16)
    return model, distributed_optimizer(model)


def sharded(module: Any, optimizer: Any, rank: int, is_loading: bool = False) -> dict[str, Any]:
    """Return the state to save, and the state to load it into."""
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    model = {"weight": ShardedTensor.from_rank_offsets("weight", module.weight, replica_id=(0, 0, rank))}
    options: dict[str, Any] = {}
    if hasattr(
        DistributedOptimizer, "sharded_param_state_dp_reshardable"
    ):  # core 0.14 on: verl's default format
        metadata = {"distrib_optim_sharding_type": "dp_reshardable", "chained_optim_avoid_prefix": True}
        options = {"is_loading": is_loading, "metadata": metadata}
    return {"model": model, "optimizer": optimizer.sharded_state_dict(model, **options)}


def run_rank(folder: str) -> dict[str, Any]:
    """Train, save, load and continue training."""
    of_the_tree()
    import torch
    from megatron.core import dist_checkpointing, mpu

    rank = join_ranks(folder)
    mpu.initialize_model_parallel()
    model, optimizer = made()
    for size in (1.0, 2.0, 3.0):
        train(model, optimizer, size)
    checkpoint = os.path.join(folder, "checkpoint")
    os.makedirs(checkpoint, exist_ok=True)
    torch.distributed.barrier()
    try:
        saved = sharded(model.module, optimizer, rank)
    except (AttributeError, RuntimeError) as error:
        return {"error": str(error)}
    dist_checkpointing.save(saved, checkpoint)
    torch.distributed.barrier()
    other, fresh = made()
    loaded = dist_checkpointing.load(sharded(other.module, fresh, rank, is_loading=True), checkpoint)
    other.module.load_state_dict(loaded["model"])
    fresh.load_state_dict(loaded["optimizer"])
    same = torch.equal(model.module.weight, other.module.weight)
    train(model, optimizer)
    train(other, fresh)
    return {"loaded": same, "equal": torch.equal(model.module.weight, other.module.weight)}


def main() -> dict[str, Any]:
    found = run_ranks(RANKS)
    return {"fault": not all(one.get("equal") for one in found), "ranks": found}


if __name__ == "__main__":
    show(main if len(sys.argv) == 1 else lambda: run_rank(sys.argv[1]))
