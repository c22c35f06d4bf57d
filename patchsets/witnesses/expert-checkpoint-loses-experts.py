"""Show whether verl 54c9b73's checkpoint manager saves every expert, on four gloo ranks with EP2 over DP4.

The model is a value of the rank's expert group and one that all ranks share. Each rank saves, forgets both and loads.
verl lets the first data-parallel rank save (verl/utils/checkpoint/megatron_checkpoint_manager.py:235), which has the
experts of the first expert-parallel rank only; Megatron-LM's save_checkpoint asks for the first rank of those with the
same experts (megatron/training/checkpointing.py:331@core_r0.8.0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from witness_common import checkpoint_manager, fork_ranks, import_checkpoint_manager, show

STAND_INS = ("npu",)

RANKS, SECONDS = 4, 240


def rank(number: int, folder: str) -> dict[str, Any]:
    """Save and load; return the rank's expert group, what it loaded, or None without a file, and the files written."""
    import torch

    model = torch.nn.Module()
    manager = checkpoint_manager(import_checkpoint_manager(), folder, model)
    from megatron.core import mpu

    mpu.initialize_model_parallel(expert_model_parallel_size=2)
    group = mpu.get_expert_model_parallel_rank()
    model.experts = torch.nn.Parameter(torch.tensor([1.0 + group]))
    model.shared = torch.nn.Parameter(torch.tensor([7.0]))
    manager.save_checkpoint(folder, global_step=1)
    torch.distributed.barrier()
    for value in model.parameters():
        torch.nn.init.zeros_(value)
    try:
        manager.load_checkpoint(folder)
        loaded = [value.item() for value in model.parameters()]
    except FileNotFoundError:
        loaded = None
    files = sorted(path.parent.name for path in Path(folder, "model").glob("*/model.pt"))
    return {"group": group, "loaded": loaded, "files": files}


def main() -> dict[str, Any]:
    import_checkpoint_manager()  # once for all ranks: four take minutes on a small machine
    ranks = fork_ranks(RANKS, rank, SECONDS)
    return {"fault": any(one["loaded"] != [1.0 + one["group"], 7.0] for one in ranks), "ranks": ranks}


if __name__ == "__main__":
    show(main)
