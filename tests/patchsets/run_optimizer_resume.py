"""Train, save, load into a new model and optimizer, and train on, by verl's checkpoint manager of 54c9b73, on gloo.

    python run_optimizer_resume.py VERL FOLDER

VERL: the folder of the package verl. Megatron-core 0.8.0 is on the path; rank and world are in the environment. The
optimizer is Megatron-core's distributed one, over an Adam that keeps its step as MindSpeed's AdamW does, in its
groups. Prints JSON: whether both models are equal after one more step, or what loading raised.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import torch
import transformers  # noqa: F401  it looks for Apex when it is imported, and this one is no package
from npu_rl_rehearsal import cpu_cuda
from run_expert_checkpoint import manager_of, without_their_init


class FusedAdam(torch.optim.Optimizer):
    """Adam without weight decay; Megatron-core asks for Apex's, for which the recipe's prelude puts MindSpeed's."""

    def __init__(self, groups: Any, lr: float, betas: Any, eps: float, **_: Any) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for value in group["params"]:
                state = self.state[value]
                for name in () if state else ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(value)
                state["exp_avg"].lerp_(value.grad, 1 - first)
                state["exp_avg_sq"].lerp_(value.grad**2, 1 - second)
                mean = state["exp_avg"] / (1 - first ** group["step"])
                square = state["exp_avg_sq"] / (1 - second ** group["step"])
                value -= group["lr"] * mean / (square.sqrt() + group["eps"])


class _NamedAsCuda(cpu_cuda.OnCpu):
    """Megatron-core 0.8.0's optimizer takes no parameter whose type is not named as CUDA's."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(function, types, args, kwargs)
        if function is torch.Tensor.type and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.")
        return found


def main(verl: str, folder: str) -> dict[str, Any]:
    without_their_init(verl)
    apex: Any = types.ModuleType("apex.optimizers")
    apex.FusedAdam, apex.FusedSGD = FusedAdam, torch.optim.SGD
    sys.modules |= {"apex": types.ModuleType("apex"), "apex.optimizers": apex}
    cpu_cuda.install()
    with _NamedAsCuda():
        return trained(folder)


def trained(folder: str) -> dict[str, Any]:
    from megatron.core import mpu

    torch.distributed.init_process_group("gloo")
    mpu.initialize_model_parallel()
    model, optimizer = made()
    for size in (1.0, 2.0, 3.0):
        train(model, optimizer, size)
    manager_of(folder, model, optimizer).save_checkpoint(folder, global_step=3)
    torch.distributed.barrier()
    other, fresh = made()
    try:
        manager_of(folder, other, fresh).load_checkpoint(folder)
    except KeyError as error:
        return {"error": repr(error)}
    loaded = torch.equal(model.module.weight, other.module.weight)
    for one, its in ((model, optimizer), (other, fresh)):
        train(one, its, 1.0)
    return {"loaded": loaded, "equal": torch.equal(model.module.weight, other.module.weight)}


def made() -> tuple[Any, Any]:
    """A model of 64 weights in bfloat16 and its optimizer, both new and always the same."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    kind = {"bf16": True, "params_dtype": torch.bfloat16}
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **kind)
    module = MegatronModule(config)
    generator = torch.Generator().manual_seed(0)
    module.weight = torch.nn.Parameter(torch.randn(64, generator=generator).bfloat16())
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), module
    )
    options = OptimizerConfig(optimizer="adam", lr=0.1, clip_grad=0.0, use_distributed_optimizer=True, **kind)
    return model, get_megatron_optimizer(options, [model])


def train(model: Any, optimizer: Any, size: float) -> None:
    model.zero_grad_buffer()
    optimizer.zero_grad()
    model.module.weight.sum().mul(size).backward()
    model.finish_grad_sync()
    optimizer.step()


if __name__ == "__main__":
    print("\n" + json.dumps(main(*sys.argv[1:])))
