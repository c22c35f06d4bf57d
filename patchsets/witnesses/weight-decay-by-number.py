"""Show which parameters decay after a resume with two pipeline stages, with Megatron-core on two gloo ranks.

Each stage has a matrix and a norm; the first begins with the matrix, as with an embedding, the second with the norm, as
with a layer. Their distributed optimizers train two steps, are saved by Megatron's distributed checkpoint, and are
loaded into new ones. The checkpoint holds the groups of rank 0; Megatron-core 0.12.1 gives them to the groups of each
rank by number (megatron/core/optimizer/distrib_optimizer.py:688@a845aa7), since 9a45638758 by what they are.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from npu_rl_rehearsal import cpu_cuda
from witness_common import (
    distributed_model,
    distributed_optimizer,
    fit_later_torch,
    join_ranks,
    make_apex,
    run_ranks,
    show,
    through_checkpoint,
    train,
    verls_format,
)

STAGES = 2


class FusedAdam(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Stand-in for apex's optimizer, which needs CUDA: a step per group, moments per parameter, decoupled decay."""

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
    """Use the rehearsal's device, with CUDA's type names, which Megatron-core's optimizers compare."""

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(function, kinds, args, kwargs)
        named = function is torch.Tensor.type and isinstance(found, str)
        return found.replace("torch.", "torch.cuda.") if named else found


def made(stage: int) -> tuple[Any, Any, Any]:
    """Return the same model of a stage each time, with its optimizer and scheduler."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    sizes = {"matrix": (8, 8), "norm": (8,)}
    model = distributed_model(
        {name: torch.ones(sizes[name]).bfloat16() for name in sorted(sizes, reverse=stage > 0)},
        num_layers=STAGES, pipeline_dtype=torch.bfloat16, bf16=True, params_dtype=torch.bfloat16,
    )  # fmt: skip
    optimizer = distributed_optimizer(model, weight_decay=0.01)
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.1, max_lr=0.1, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=100,
        lr_decay_style="constant", start_wd=0.01, end_wd=0.01, wd_incr_steps=100, wd_incr_style="constant",
    )  # fmt: skip
    return model, optimizer, scheduler


def decay(optimizer: Any) -> dict[str, float]:
    """Return the weight decay of the matrix and of the norm."""
    (inner,) = getattr(optimizer, "chained_optimizers", [optimizer])
    groups = [(one.numel(), group) for group in inner.optimizer.param_groups for one in group["params"]]
    return {"norm" if size == 8 else "matrix": group["weight_decay"] for size, group in groups}


def sharded(stage: int, model: Any, optimizer: Any, **given: Any) -> dict[str, Any]:
    """Return the saved and loaded state, in the form that verl expects."""
    from megatron.core.dist_checkpointing import ShardedTensor

    state = {
        name: ShardedTensor.from_rank_offsets(f"stage{stage}.{name}", one, replica_id=(0, 0, 0))
        for name, one in model.module.named_parameters()
    }
    return {"model": state, "optimizer": optimizer.sharded_state_dict(state, **given, **verls_format())}


def run_stage(folder: str) -> dict[str, Any]:
    """Train, save, load, and return the weight decays before and after."""
    make_apex(FusedAdam=FusedAdam)
    cpu_cuda.install()
    with OnCpu():
        from megatron.core import mpu

        fit_later_torch()
        stage = join_ranks(folder)
        mpu.initialize_model_parallel(pipeline_model_parallel_size=STAGES)
        model, optimizer, scheduler = made(stage)
        for _ in range(2):
            train(model, optimizer)
            scheduler.step(1)
        other, fresh, after = made(stage)
        loaded = through_checkpoint(
            folder, sharded(stage, model, optimizer), lambda: sharded(stage, other, fresh, is_loading=True)
        )
        fresh.load_state_dict(loaded["optimizer"])
        after.step(2)
        return {"saved": decay(optimizer), "resumed": decay(fresh)}


def main() -> dict[str, Any]:
    found = run_ranks(STAGES)
    return {"fault": any(one["saved"] != one["resumed"] for one in found), "stages": found}


if __name__ == "__main__":
    show(main if len(sys.argv) == 1 else lambda: run_stage(sys.argv[1]))
