"""Show whether a distributed checkpoint holds an optimizer that MindSpeed has swapped to the host, on two gloo ranks.

Real: MindSpeed's SwapDistributedOptimizer and swap_adamw_step, which its feature swap_optimizer puts in place
(mindspeed/features_manager/optimizer/swap_optimizer_feature.py:22@7ff818c), and Megatron's distributed checkpoint, with
the optimizer's sharded_state_dict as verl calls it (verl/utils/checkpoint/megatron_checkpoint_manager.py:251@55e3c5b).
Made here: the fused operator of Adam, which is compiled for NPUs.

Two ranks train three steps, save, load into a new model and optimizer, and take the fourth step; so does the one that
was never stopped. What is compared is the model's parameter, to the bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import types
from types import SimpleNamespace
from typing import Any

import transformers  # noqa: F401  looks for apex when it is imported, and the one below is not a package

RANKS, SECONDS, SIZE = 2, 240, 512


def adam(
    main: Any, grad: Any, mean: Any, square: Any, most: Any, step: Any, lr: float, beta1: float, beta2: float,
    decay: float, eps: float, amsgrad: bool, maximize: bool,
) -> None:  # fmt: skip
    """Stand for npu_apply_fused_adamw_v2."""
    count = float(step)
    mean.lerp_(grad.float(), 1 - beta1)
    square.lerp_(grad.float() ** 2, 1 - beta2)
    main.mul_(1 - lr * decay)
    main.addcdiv_(mean / (1 - beta1**count), (square / (1 - beta2**count)).sqrt() + eps, value=-lr)


def of_the_tree() -> None:
    """Put MindSpeed's optimizer where its feature does."""
    import torch
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    apex: Any = types.ModuleType("apex.optimizers")
    apex.FusedAdam, apex.FusedSGD = torch.optim.AdamW, torch.optim.SGD
    sys.modules |= {"apex": types.ModuleType("apex"), "apex.optimizers": apex}
    import megatron.core.optimizer
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.optimizer import distrib_optimizer
    from mindspeed.core.optimizer import adamw
    from mindspeed.core.optimizer.swap_optimizer import swap_optimizer
    from torch.distributed.checkpoint import filesystem

    swap_optimizer.npu_apply_fused_adamw_v2 = adam
    swap_optimizer.get_args = lambda: SimpleNamespace(swap_optimizer_times=16)  # MindSpeed's default
    adamw.AdamW.step = swap_optimizer.swap_adamw_step
    for module in (megatron.core.optimizer, distrib_optimizer):
        module.Adam = adamw.AdamW
        module.DistributedOptimizer = swap_optimizer.SwapDistributedOptimizer
    distrib_optimizer.quantize_param_shard = lambda *_, **__: None  # as MindSpeed does; for FP8 parameters
    if hasattr(filesystem, "SerializationFormat"):  # asked by later versions of torch than the stack's
        upstream: Any = filesystem_async._write_item
        as_then = filesystem.SerializationFormat.TORCH_SAVE
        filesystem_async._write_item = lambda *a, **k: upstream(*a, serialization_format=as_then, **k)


def made() -> tuple[Any, Any, Any]:
    """Return a model of one parameter, its wrapper and its optimizer, always the same."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    kind: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **kind)
    module = MegatronModule(config)
    generator = torch.Generator().manual_seed(0)
    module.weight = torch.nn.Parameter(torch.randn(SIZE, generator=generator).bfloat16())
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), module
    )
    options = OptimizerConfig(optimizer="adam", lr=0.1, clip_grad=0.0, use_distributed_optimizer=True, **kind)
    return module, model, get_megatron_optimizer(options, [model])


def train(module: Any, model: Any, optimizer: Any, size: float) -> None:
    """Take one step, with a gradient of `size` everywhere."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    module.weight.sum().mul(size).backward()
    model.finish_grad_sync()
    optimizer.step()


def sharded(module: Any, optimizer: Any, rank: int, is_loading: bool = False) -> dict[str, Any]:
    """Return what is saved, and where it is loaded to."""
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


def run_rank(rank: int, folder: str) -> dict[str, Any]:
    """Train, save, load and train on."""
    of_the_tree()
    import torch
    from megatron.core import dist_checkpointing, mpu

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    mpu.initialize_model_parallel()
    first = made()
    for size in (1.0, 2.0, 3.0):
        train(*first, size)
    checkpoint = os.path.join(folder, "checkpoint")
    os.makedirs(checkpoint, exist_ok=True)
    torch.distributed.barrier()
    try:
        saved = sharded(first[0], first[2], rank)
    except (AttributeError, RuntimeError) as error:
        return {"error": str(error)}
    dist_checkpointing.save(saved, checkpoint)
    torch.distributed.barrier()
    second = made()
    loaded = dist_checkpointing.load(sharded(second[0], second[2], rank, is_loading=True), checkpoint)
    second[0].load_state_dict(loaded["model"])
    second[2].load_state_dict(loaded["optimizer"])
    same = torch.equal(first[0].weight, second[0].weight)
    for one in (first, second):
        train(*one, 1.0)
    return {"loaded": same, "equal": torch.equal(first[0].weight, second[0].weight)}


def ranks() -> list[dict[str, Any]]:
    """Return what each rank found, in processes of their own; none waits for one that has ended with an error."""
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(rank), folder],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        end = time.monotonic() + SECONDS
        try:
            while any(one.poll() is None for one in running) and not any(one.returncode for one in running):
                if time.monotonic() > end:
                    raise TimeoutError(f"{SECONDS} s")
                time.sleep(0.1)
        finally:
            for one in running:
                one.kill()
        if any(one.wait() for one in running):
            raise RuntimeError(f"a rank ended with {[one.returncode for one in running]}")
        return [json.loads(one.stdout.read().strip().splitlines()[-1]) for one in running if one.stdout]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("\n" + json.dumps(run_rank(int(sys.argv[1]), sys.argv[2])))
    else:
        found = ranks()
        print(json.dumps({"fault": not all(one.get("equal") for one in found), "ranks": found}))
