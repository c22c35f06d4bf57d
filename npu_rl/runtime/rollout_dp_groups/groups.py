"""vLLM's own groups (tensor, pipeline, data, expert), formed over the training world."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def form_groups(tensor_parallel: int) -> None:
    """Form vLLM's groups before its worker does, because the replicas agree on their rendezvous over them.

    Reads VLLM_DP_SIZE through vLLM, sets VLLM_DP_RANK. The layout is vLLM's (`initialize_model_parallel`,
    vllm/distributed/parallel_state.py:966@v0.9.1): data x tensor, and the expert group is both. The worker finds
    the groups and keeps them (`ensure_model_parallel_initialized`). vllm-ascend's MC2 group is not formed here: its
    size depends on the engine's `enable_expert_parallel`, which only the worker knows.
    """
    import torch.distributed as dist

    _patch_vllm_for_its_platform()
    from vllm import envs
    from vllm.config import CompilationConfig, ParallelConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    rank = dist.get_rank()
    tell("VLLM_DP_RANK", rank // tensor_parallel)
    # Only the part of vLLM's configuration that the groups are made from. A whole one would be shown to the
    # platform, and vllm-ascend keeps the first it sees: this one, without the recipe's additional_config
    # (`init_ascend_config`, vllm_ascend/ascend_config.py@v0.9.1rc2).
    config: Any = SimpleNamespace(
        parallel_config=ParallelConfig(
            tensor_parallel_size=tensor_parallel, distributed_executor_backend="external_launcher"
        ),
        compilation_config=CompilationConfig(),
    )
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(
            world_size=tensor_parallel,  # of one copy; vLLM multiplies
            rank=rank % tensor_parallel,
            distributed_init_method="env://",
            local_rank=envs.LOCAL_RANK,
            backend=dist.get_backend(),  # the world's: HCCL on NPUs
        )
        parallel_state.initialize_model_parallel(tensor_parallel)


def tell(name: str, value: object) -> None:
    """Set one of vLLM's variables for this process.

    `vllm.envs` reads the environment each time (v0.9.1), unless the module's attribute was assigned.
    """
    from vllm import envs

    os.environ[name] = str(value)
    vars(envs).pop(name, None)


def _patch_vllm_for_its_platform() -> None:
    """Import vllm-ascend's patches before the first group, since they replace the class of the groups.

    Both modules patch on import: a second import, by the engine and its worker, does nothing
    (vllm_ascend/utils.py:155@v0.9.1rc2).
    """
    from vllm.platforms import current_platform

    if type(current_platform).__module__.partition(".")[0] == "vllm_ascend":
        from vllm_ascend.utils import adapt_patch

        adapt_patch(is_global_patch=True)
        adapt_patch()
