"""Show whether a distributed checkpoint holds an optimizer that MindSpeed has swapped to the host, on two gloo ranks.

Real: MindSpeed's SwapDistributedOptimizer and swap_adamw_step, which its feature swap_optimizer puts in place
(mindspeed/features_manager/optimizer/swap_optimizer_feature.py:22@7ff818c), and Megatron's distributed checkpoint, with
the optimizer's sharded_state_dict as verl calls it (verl/utils/checkpoint/megatron_checkpoint_manager.py:251@55e3c5b).
Made here: the fused operator of Adam, which is compiled for NPUs.

Two ranks train three steps, save, load into a new model and optimizer, and take the fourth step; so does the one that
was never stopped. What is compared is the model's parameter, to the bit.
"""

from __future__ import annotations

import sys
from typing import Any

from witness_common import (
    fit_later_torch,
    join_ranks,
    make_apex,
    run_ranks,
    show,
    swap_optimizer_states,
    through_checkpoint,
    train,
    verls_format,
    weights_and_optimizer,
)

STAND_INS = ("npu",)

RANKS = 2


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
    megatron.core.optimizer.Adam = distrib_optimizer.Adam = adamw.AdamW
    swap_optimizer_states(swap_optimizer, adamw.AdamW)
    fit_later_torch()


def sharded(module: Any, optimizer: Any, rank: int, is_loading: bool = False) -> dict[str, Any]:
    """Return the state to save, and the state to load it into."""
    from megatron.core.dist_checkpointing import ShardedTensor

    model = {"weight": ShardedTensor.from_rank_offsets("weight", module.weight, replica_id=(0, 0, rank))}
    options = verls_format()
    if options:
        options["is_loading"] = is_loading
    return {"model": model, "optimizer": optimizer.sharded_state_dict(model, **options)}


def run_rank(folder: str) -> dict[str, Any]:
    """Train, save, load and continue training."""
    of_the_tree()
    import torch
    from megatron.core import mpu

    rank = join_ranks(folder)
    mpu.initialize_model_parallel()
    model, optimizer = weights_and_optimizer()
    for size in (1.0, 2.0, 3.0):
        train(model, optimizer, size)
    try:
        saved = sharded(model.module, optimizer, rank)
    except (AttributeError, RuntimeError) as error:
        return {"error": str(error)}
    other, fresh = weights_and_optimizer()
    loaded = through_checkpoint(folder, saved, lambda: sharded(other.module, fresh, rank, is_loading=True))
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
