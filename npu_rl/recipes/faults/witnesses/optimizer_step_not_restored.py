"""Show whether a resumed run goes on with its optimizer, by verl 54c9b73's checkpoint manager on two gloo ranks.

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

import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers  # looks for apex when it is imported, and the one below is not a package

RANKS, SECONDS = 2, 240


def of_the_tree(swap: bool) -> Any:
    """Import verl's manager with what is not installed, and MindSpeed's optimizer where the recipe puts it."""
    import packaging.version
    import torch
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    found: Any = types.ModuleType("pkg_resources")
    found.packaging = packaging  # all that Megatron-core 0.8.0 takes of it
    verl: Any = types.ModuleType("verl")  # its own __init__ needs more
    verl.__path__ = [str(Path("verl").absolute())]
    apex: Any = types.ModuleType("apex.optimizers")
    apex.FusedSGD = torch.optim.SGD
    sys.modules |= {
        "pkg_resources": found,
        "verl": verl,
        "apex": types.ModuleType("apex"),
        "apex.optimizers": apex,
    }
    from mindspeed.optimizer.adamw import AdamW

    apex.FusedAdam = AdamW  # as verl_patches/prelude_patch.py does
    import megatron.core.optimizer
    from megatron.core.optimizer import distrib_optimizer
    from verl.utils.checkpoint import megatron_checkpoint_manager

    if swap:
        from mindspeed.core.optimizer import swap_optimizer

        swap_optimizer.get_args = lambda: SimpleNamespace(swap_optimizer_times=16)  # MindSpeed's default
        AdamW.step = swap_optimizer.swap_adamw_step
        for module in (megatron.core.optimizer, distrib_optimizer):
            module.DistributedOptimizer = swap_optimizer.SwapDistributedOptimizer
    # As verl_patches/verl_adaptor.py:95 does: verl's own needs a later Megatron-core.
    megatron_checkpoint_manager.get_weight_saver = lambda _arch: None
    return megatron_checkpoint_manager.MegatronCheckpointManager


def manager(kind: Any, folder: str, model: Any, optimizer: Any) -> Any:
    """Return verl's manager for one model and its optimizer."""
    import torch

    return kind(
        config=SimpleNamespace(model=SimpleNamespace(path=folder)),
        model_config=None,
        role="actor",
        model=[model],
        arch="DeepseekV3ForCausalLM",
        hf_config=transformers.LlamaConfig(),
        param_dtype=torch.float32,
        share_embeddings_and_output_weights=False,
        tokenizer=transformers.GenerationConfig(),  # something with save_pretrained
        optimizer=optimizer,
        use_distributed_optimizer=True,
        checkpoint_contents=["model", "optimizer"],
    )


def made() -> tuple[Any, Any]:
    """Return a model of 512 weights in bfloat16, 256 for each rank to update, and its optimizer, always the same."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    kind = {"bf16": True, "params_dtype": torch.bfloat16}
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **kind)
    module = MegatronModule(config)
    generator = torch.Generator().manual_seed(0)
    module.weight = torch.nn.Parameter(torch.randn(256 * RANKS, generator=generator).bfloat16())
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), module
    )
    options = OptimizerConfig(optimizer="adam", lr=0.1, clip_grad=0.0, use_distributed_optimizer=True, **kind)
    return model, get_megatron_optimizer(options, [model])


def train(model: Any, optimizer: Any, size: float) -> None:
    """Take one step, with a gradient of `size` everywhere."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    model.module.weight.sum().mul(size).backward()
    model.finish_grad_sync()
    optimizer.step()


def main_parameter(optimizer: Any) -> Any:
    """Return this rank's float32 shard, wherever the optimizer keeps it."""
    (inner,) = getattr(optimizer, "chained_optimizers", [optimizer])
    ((value,),) = inner.shard_fp32_from_float16_groups
    kept = getattr(inner, "param_to_cpu_states_map", {}).get(value)
    return (value if kept is None else kept["param"]).clone()


def rank(swap: bool, folder: str) -> dict[str, Any]:
    """Train, save, load and train on; return whether both are equal and how far each moved in its fourth step."""
    kind = of_the_tree(swap)
    import torch
    from megatron.core import mpu

    number = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=number, world_size=RANKS
    )
    mpu.initialize_model_parallel()
    model, optimizer = made()
    for size in (1.0, 2.0, 3.0):
        train(model, optimizer, size)
    manager(kind, folder, model, optimizer).save_checkpoint(folder, global_step=3)
    torch.distributed.barrier()
    other, fresh = made()
    try:
        manager(kind, folder, other, fresh).load_checkpoint(folder)
    except KeyError as error:
        return {"error": repr(error)}
    before = [main_parameter(one) for one in (optimizer, fresh)]
    loaded = torch.equal(*before)
    for one, its in ((model, optimizer), (other, fresh)):
        train(one, its, 1.0)
    after = [main_parameter(one) for one in (optimizer, fresh)]
    moved = [(new - old).abs().mean().item() for new, old in zip(after, before, strict=True)]
    return {"loaded": loaded, "equal": torch.equal(*after), "moved": [round(value, 4) for value in moved]}


def ranks(kind: str) -> list[dict[str, Any]]:
    """Return what each rank found with one kind of optimizer, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, kind, folder],
                env={**os.environ, "RANK": str(number), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(number)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(RANKS)
        ]
        try:
            printed = [process.communicate(timeout=SECONDS)[0] for process in running]
        finally:
            for process in running:
                process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError(f"{kind}: a rank ended with {[process.returncode for process in running]}")
    return [json.loads(text.strip().splitlines()[-1]) for text in printed]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("\n" + json.dumps(rank(sys.argv[1] == "swap", sys.argv[2])))
    else:
        found = {kind: ranks(kind) for kind in ("plain", "swap")}
        print(
            json.dumps(
                {"fault": not all(one.get("equal") for kind in found.values() for one in kind), **found}
            )
        )
