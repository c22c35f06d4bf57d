"""Real checkpoints of FSDP over gloo: `python fsdp_ranks.py FOLDER` writes one of each of KINDS as verl saves it."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

KINDS = {"fsdp1": 2, "fsdp2": 3, "hybrid": 4, "one_rank": 1}
"""By name: how many ranks."""


def save(kind: str, rank: int, world: int, folder: Path) -> None:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        ShardedStateDictConfig,
        ShardingStrategy,
        StateDictType,
        fully_shard,
    )

    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1, bias=False))
    model.register_buffer("correction", torch.arange(4.0))
    if rank == 0:
        torch.save({name: value.clone() for name, value in model.state_dict().items()}, folder / "whole.pt")
    shape, names = ((2, world // 2), ("ddp", "fsdp")) if kind == "hybrid" else ((world,), ("fsdp",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    context: Any = contextlib.nullcontext()
    if kind == "fsdp2":
        fully_shard(model, mesh=mesh)
    else:
        strategy = ShardingStrategy.HYBRID_SHARD if kind == "hybrid" else ShardingStrategy.FULL_SHARD
        model = FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), sharding_strategy=strategy, device_mesh=mesh
        )
        context = FullyShardedDataParallel.state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False)
        )
    with context:
        torch.save(model.state_dict(), folder / f"model_world_size_{world}_rank_{rank}.pt")
    dist.destroy_process_group()


def main(root: Path) -> None:
    import torch  # noqa: F401  once, for all ranks

    for kind, world in KINDS.items():
        folder = root / kind
        folder.mkdir()
        ranks = []
        for rank in range(world):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                code = 1
                try:
                    save(kind, rank, world, folder)
                    code = 0
                except Exception:  # noqa: BLE001  a child that goes on would be a second parent
                    traceback.print_exc()
                finally:
                    os._exit(code)
        codes = [os.waitpid(pid, 0)[1] for pid in ranks]
        if any(codes):
            sys.exit(f"{kind}: {codes}")
        config = f'{{"FSDP_version": {2 if kind == "fsdp2" else 1}, "world_size": {world}}}'
        (folder / "fsdp_config.json").write_text(config)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
