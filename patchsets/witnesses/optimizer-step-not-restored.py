"""Show whether a resumed run restores its optimizer, with verl 54c9b73's checkpoint manager on two gloo ranks.

Two optimizers of Megatron-core 0.8.0, both on MindSpeed's own AdamW (mindspeed/optimizer/adamw.py@v2.0.0_core_r0.8.0):

- plain: the distributed optimizer. It keeps the step in its groups and makes its moments in the first step, so loading
  into a new one ends with KeyError 'exp_avg' (megatron/core/optimizer/distrib_optimizer.py:1284@core_r0.8.0).
- swap: MindSpeed's SwapDistributedOptimizer and swap_adamw_step (mindspeed/core/optimizer/swap_optimizer.py), which
  MindSpeed-LLM puts in place for swap_optimizer (mindspeed_llm/tasks/megatron_adaptor.py:693@v2.0.0). It keeps the step
  in each parameter's state, and loads without a word.

Each trains three steps, saves, is loaded into a new model and optimizer, and takes the fourth step; so does the one
that was never stopped. What is looked at is the main parameters, to the bit.
"""

from __future__ import annotations

import sys
from typing import Any

from witness_common import (
    checkpoint_manager,
    import_checkpoint_manager,
    join_ranks,
    make_apex,
    run_ranks,
    show,
    swap_optimizer_states,
    train,
    weights_and_optimizer,
)

STAND_INS = ("npu",)

RANKS = 2


def of_the_tree(swap: bool) -> Any:
    """Import verl's manager, and MindSpeed's optimizer as installed by the recipe."""
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    apex = make_apex()
    from mindspeed.optimizer.adamw import AdamW

    apex.FusedAdam = AdamW  # as verl_patches/prelude_patch.py does
    kind = import_checkpoint_manager()
    if swap:
        from mindspeed.core.optimizer import swap_optimizer

        swap_optimizer_states(swap_optimizer, AdamW)
    return kind


def main_parameter(optimizer: Any) -> Any:
    """Return this rank's float32 shard from the optimizer."""
    (inner,) = getattr(optimizer, "chained_optimizers", [optimizer])
    ((value,),) = inner.shard_fp32_from_float16_groups
    kept = getattr(inner, "param_to_cpu_states_map", {}).get(value)
    return (value if kept is None else kept["param"]).clone()


def rank(swap: bool, folder: str) -> dict[str, Any]:
    """Train, save, load and continue; return whether both runs are equal, and how far each moved in step four."""
    kind = of_the_tree(swap)
    import torch
    from megatron.core import mpu

    join_ranks(folder)
    mpu.initialize_model_parallel()
    model, optimizer = weights_and_optimizer()
    for size in (1.0, 2.0, 3.0):
        train(model, optimizer, size)
    checkpoint_manager(kind, folder, model, optimizer).save_checkpoint(folder, global_step=3)
    torch.distributed.barrier()
    other, fresh = weights_and_optimizer()
    try:
        checkpoint_manager(kind, folder, other, fresh).load_checkpoint(folder)
    except KeyError as error:
        return {"error": repr(error)}
    before = [main_parameter(one) for one in (optimizer, fresh)]
    train(model, optimizer)
    train(other, fresh)
    after = [main_parameter(one) for one in (optimizer, fresh)]
    moved = [(new - old).abs().mean().item() for new, old in zip(after, before, strict=True)]
    return {
        "loaded": torch.equal(*before),
        "equal": torch.equal(*after),
        "moved": [round(value, 4) for value in moved],
    }


def main() -> dict[str, Any]:
    found = {kind: run_ranks(RANKS, kind) for kind in ("plain", "swap")}
    return {"fault": not all(one.get("equal") for kind in found.values() for one in kind), **found}


if __name__ == "__main__":
    show(main if len(sys.argv) == 1 else lambda: rank(sys.argv[1] == "swap", sys.argv[2]))
