"""Show which parameters decay after a resume with two pipeline stages, by the tree's Megatron-core on two gloo ranks.

Each stage has a matrix and a norm; the first begins with the matrix, as with an embedding, the second with the norm, as
with a layer. Their distributed optimizers train two steps, are saved by Megatron's distributed checkpoint, and are
loaded into new ones. The checkpoint holds the groups of rank 0; Megatron-core 0.12.1 gives them to the groups of each
rank by number (megatron/core/optimizer/distrib_optimizer.py:688@a845aa7), since 9a45638758 by what they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import types
from typing import Any

import torch
import transformers  # noqa: F401  looks for apex when it is imported, and the one below is not a package
from npu_rl_rehearsal import cpu_cuda

STAGES, SECONDS = 2, 200


class FusedAdam(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Stands for apex's, which is compiled for CUDA: a step per group, moments of each parameter, decoupled decay."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, **given: Any) -> None:
        decay = given.get("weight_decay", 0.0)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for one in group["params"]:
                state = self.state[one]
                for name in () if state else ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(one)
                state["exp_avg"].lerp_(one.grad, 0.1)
                state["exp_avg_sq"].lerp_(one.grad**2, 0.1)
                one.mul_(1 - group["lr"] * group["weight_decay"])
                one.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


class OnCpu(cpu_cuda.OnCpu):
    """As the rehearsal's, with CUDA's names of types, which Megatron-core's optimizers compare."""

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(function, kinds, args, kwargs)
        named = function is torch.Tensor.type and isinstance(found, str)
        return found.replace("torch.", "torch.cuda.") if named else found


def made(stage: int) -> tuple[Any, Any, Any, Any]:
    """Return the model of a stage, its wrapper, its optimizer and its scheduler, always the same."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    kind: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}
    config = TransformerConfig(
        num_layers=STAGES, hidden_size=8, num_attention_heads=1, pipeline_dtype=torch.bfloat16, **kind
    )
    module = MegatronModule(config)
    sizes = {"matrix": (8, 8), "norm": (8,)}
    for name in sorted(sizes, reverse=stage > 0):
        setattr(module, name, torch.nn.Parameter(torch.ones(sizes[name]).bfloat16()))
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), module
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=0.1, weight_decay=0.01, clip_grad=0.0, use_distributed_optimizer=True, **kind
        ),
        [model],
    )
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.1, max_lr=0.1, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=100,
        lr_decay_style="constant", start_wd=0.01, end_wd=0.01, wd_incr_steps=100, wd_incr_style="constant",
    )  # fmt: skip
    return module, model, optimizer, scheduler


def train(module: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Take one step."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    (module.matrix.sum() + module.norm.sum()).backward()
    model.finish_grad_sync()
    optimizer.step()
    scheduler.step(1)


def decay(optimizer: Any) -> dict[str, float]:
    """Return the weight decay of the matrix and of the norm."""
    (inner,) = getattr(optimizer, "chained_optimizers", [optimizer])
    groups = [(one.numel(), group) for group in inner.optimizer.param_groups for one in group["params"]]
    return {"norm" if size == 8 else "matrix": group["weight_decay"] for size, group in groups}


def sharded(stage: int, module: Any, optimizer: Any, **given: Any) -> dict[str, Any]:
    """Return what is saved and loaded, in the form that verl asks for."""
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    if hasattr(DistributedOptimizer, "checkpoint_fully_reshardable_formats"):  # since Megatron-core 0.14
        given["metadata"] = {  # verl/utils/checkpoint/megatron_checkpoint_manager.py:409@7aed6b2
            "distrib_optim_sharding_type": "dp_reshardable",
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
        }
    model = {
        name: ShardedTensor.from_rank_offsets(f"stage{stage}.{name}", one, replica_id=(0, 0, 0))
        for name, one in module.named_parameters()
    }
    return {"model": model, "optimizer": optimizer.sharded_state_dict(model, **given)}


def run_stage(stage: int, folder: str) -> dict[str, Any]:
    """Train, save, load, and return the weight decays before and after."""
    apex: Any = types.ModuleType("apex.optimizers")
    apex.FusedAdam, apex.FusedSGD = FusedAdam, torch.optim.SGD
    sys.modules |= {"apex": types.ModuleType("apex"), "apex.optimizers": apex}
    cpu_cuda.install()
    with OnCpu():
        from megatron.core import dist_checkpointing, mpu
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        from megatron.core.optimizer import distrib_optimizer
        from torch.distributed.checkpoint import filesystem

        if hasattr(filesystem, "SerializationFormat"):  # asked by later versions of torch than the stack's
            upstream: Any = filesystem_async._write_item
            as_then = filesystem.SerializationFormat.TORCH_SAVE
            filesystem_async._write_item = lambda *a, **k: upstream(*a, serialization_format=as_then, **k)
        distrib_optimizer.quantize_param_shard = lambda *_, **__: (
            None
        )  # as MindSpeed does; for FP8 parameters
        torch.distributed.init_process_group(
            "gloo", rank=stage, world_size=STAGES, init_method=f"file://{folder}/meet"
        )
        mpu.initialize_model_parallel(pipeline_model_parallel_size=STAGES)
        module, model, optimizer, scheduler = made(stage)
        for _ in range(2):
            train(module, model, optimizer, scheduler)
        checkpoint = os.path.join(folder, "checkpoint")
        os.makedirs(checkpoint, exist_ok=True)
        torch.distributed.barrier()
        dist_checkpointing.save(sharded(stage, module, optimizer), checkpoint)
        torch.distributed.barrier()
        other, _, fresh, after = made(stage)
        loaded = dist_checkpointing.load(sharded(stage, other, fresh, is_loading=True), checkpoint)
        fresh.load_state_dict(loaded["optimizer"])
        after.step(2)
        return {"saved": decay(optimizer), "resumed": decay(fresh)}


def stages() -> list[dict[str, Any]]:
    """Return what each stage found, in processes of their own; none waits for one that has ended with an error."""
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(stage), folder],
                stdout=subprocess.PIPE,
                text=True,
            )
            for stage in range(STAGES)
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
            raise RuntimeError(f"a stage ended with {[one.returncode for one in running]}")
        return [json.loads(one.stdout.read().strip().splitlines()[-1]) for one in running if one.stdout]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("\n" + json.dumps(run_stage(int(sys.argv[1]), sys.argv[2])))
    else:
        found = stages()
        print(json.dumps({"fault": any(one["saved"] != one["resumed"] for one in found), "stages": found}))
