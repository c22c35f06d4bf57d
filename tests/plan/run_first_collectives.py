"""Which groups have had a collective when verl's actor is made: `run_first_collectives.py`, in a tree's code folder.

Four gloo ranks, which this script starts itself, with one model of a dense parameter and an expert's. The tree's own:
verl's get_model and get_megatron_optimizer, Megatron-core's groups, its DistributedDataParallel and its distributed
optimizer. Prints JSON: by layout, the kinds of groups in which a collective was called, "world" for the default one.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

WORLD = 4
LAYOUTS = {
    "two copies of experts": {"expert_model_parallel_size": 2},
    "pipeline and tensor": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "tensor and data": {"tensor_model_parallel_size": 2},
}
COLLECTIVES = (
    "broadcast", "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce_scatter_tensor",
    "all_to_all_single", "gather", "gather_object", "scatter", "barrier", "broadcast_object_list", "reduce",
)  # fmt: skip


def main() -> dict[str, list[str]]:
    import transformers  # noqa: F401  looks for apex when it is imported, and the one below is not a package

    import_what_the_tree_has()
    found, context = {}, multiprocessing.get_context("fork")  # the imports take a minute, once
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            ranks = [context.Process(target=be_a_rank, args=(layout, folder, rank)) for rank in range(WORLD)]
            for one in ranks:
                one.start()
            for one in ranks:
                one.join(60)
                one.kill()
            said = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORLD)]
        found[layout] = sorted({kind for kinds in said for kind in kinds})
    return found


def import_what_the_tree_has() -> None:
    import packaging.version
    import torch
    import torch_npu.contrib.transfer_to_npu  # noqa: F401

    resources: Any = ModuleType("pkg_resources")
    resources.packaging = packaging  # all that Megatron-core 0.8.0 takes of it
    apex: Any = ModuleType("apex.optimizers")
    apex.FusedAdam, apex.FusedSGD = torch.optim.AdamW, torch.optim.SGD
    package: Any = ModuleType("verl")  # its own __init__, and the models, want more packages
    package.__path__ = [str(Path("verl").absolute())]
    sys.modules |= {
        "pkg_resources": resources, "apex": ModuleType("apex"), "apex.optimizers": apex, "verl": package,
        "verl.models.mcore": ModuleType("verl.models.mcore"),
    }  # fmt: skip
    import verl.utils.megatron.optimizer
    import verl.utils.megatron_utils  # noqa: F401


def be_a_rank(layout: str, folder: str, rank: int) -> None:
    """Write the kinds of groups into RANK.json."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state as mpu
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig
    from verl.utils.megatron.optimizer import get_megatron_optimizer
    from verl.utils.megatron_utils import get_model

    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", WORLD), rank=rank, world_size=WORLD
    )
    mpu.initialize_model_parallel(**LAYOUTS[layout])
    seen: list[Any] = []
    for name in COLLECTIVES:
        recorded(dist, name, seen)

    def provider(pre_process: bool, post_process: bool) -> torch.nn.Module:
        model = torch.nn.Module()
        model.config = TransformerConfig(
            num_layers=2, hidden_size=8, num_attention_heads=2, bf16=True, pipeline_dtype=torch.bfloat16
        )
        model.dense, model.expert = (torch.nn.Parameter(torch.randn(8, 8)) for _ in range(2))
        model.expert.allreduce = False  # Megatron's mark of an expert's parameter
        return model

    actor = get_model(provider, wrap_with_ddp=True, use_distributed_optimizer=True)
    get_megatron_optimizer(
        model=actor, config=OptimizerConfig(bf16=True, lr=1e-6, use_distributed_optimizer=True)
    )
    kinds = {
        "tensor": mpu.get_tensor_model_parallel_group(), "pipeline": mpu.get_pipeline_model_parallel_group(),
        "data": mpu.get_data_parallel_group(), "data_context": mpu.get_data_parallel_group(with_context_parallel=True),
        "model": mpu.get_model_parallel_group(), "expert": mpu.get_expert_model_parallel_group(),
        "expert_data": getattr(
            mpu, "get_expert_data_parallel_group",
            lambda: mpu.get_data_modulo_expert_parallel_group(with_context_parallel=True),
        )(),
    }  # fmt: skip
    named = {id(group): name for name, group in kinds.items() if dist.get_world_size(group) > 1}
    one = {id(group) for group in kinds.values() if dist.get_world_size(group) == 1}
    dist.barrier()
    used = seen[:-1]  # without that last one
    kinds_used = {
        "world" if group is None else named.get(id(group), "unknown")
        for group in used
        if id(group) not in one
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(sorted(kinds_used)))


def recorded(module: Any, name: str, seen: list[Any]) -> None:
    """Replace a collective by one that notes its group: no other way of calling it is used before an engine is made."""
    own = getattr(module, name)

    def collective(*arguments: Any, **named: Any) -> Any:
        seen.append(named.get("group"))
        return own(*arguments, **named)

    setattr(module, name, collective)


if __name__ == "__main__":
    print("\n" + json.dumps(main()))
