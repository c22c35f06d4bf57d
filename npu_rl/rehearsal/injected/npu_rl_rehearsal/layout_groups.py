"""Form the process groups of a layout as each of its ranks, with the tree's own code, and report them.

One process acts as each rank in turn (about 30 ms a rank at 256 ranks), so no rank is assumed to be like another. The
caller judges the result.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import mindspeed_rl_arguments, trainer_arguments
from .fake_world import GroupRequests, as_rank, members
from .faults import CatchAll, describe_error
from .megatron import initialize, parallel_state

# Kind of group -> names of its getter in megatron.core.parallel_state (0.8 to 0.12), with arguments.
_MEGATRON: dict[str, tuple[tuple[str, dict[str, bool]], ...]] = {
    "tensor": (("get_tensor_model_parallel_group", {}),),
    "pipeline": (("get_pipeline_model_parallel_group", {}),),
    "context": (("get_context_parallel_group", {}),),
    "data": (("get_data_parallel_group", {}),),
    "data_context": (("get_data_parallel_group", {"with_context_parallel": True}),),
    "model": (("get_model_parallel_group", {}),),
    "expert": (("get_expert_model_parallel_group", {}),),
    "expert_tensor": (("get_expert_tensor_parallel_group", {}),),
    "expert_data": (("get_expert_data_parallel_group", {}), ("get_data_modulo_expert_parallel_group", {})),
}


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one line per part and rank with its groups, or with the reason why a part can't be formed."""
    code = Path(job["code"])
    for part in job["parts"]:
        prepare, world = _PARTS[part], job["world"]
        with CatchAll() as attempt:
            form_groups = prepare(job)
        if attempt.problem is not None:
            yield {"part": part, "unprepared": describe_error(attempt.problem, code)}
            continue
        for rank in range(world):
            with CatchAll() as attempt, as_rank(rank, world) as requests:
                seen = form_groups(rank, requests)
            if attempt.problem is not None:
                yield {"part": part, "rank": rank, "refused": describe_error(attempt.problem, code)}
                break
            yield {"part": part, "rank": rank, **seen}


FormGroups = Callable[[int, GroupRequests], dict[str, Any]]


def _prepare_megatron(job: dict[str, Any]) -> FormGroups:
    if job["mindspeed"]:  # it replaces parts of Megatron, so it is imported first, as in training
        torch: Any = importlib.import_module("torch")
        compiling = torch.compile
        try:
            if trainer_arguments.has_them(Path(job["code"])):
                trainer_arguments.set_arguments(job)
            else:
                importlib.import_module("mindspeed.megatron_adaptor")
        finally:
            # MindSpeed 2.0.0 puts torch.jit.script in its place, with which vLLM's modules can't be imported; the
            # trainers put it back for the rollout.
            torch.compile = compiling
    state, sizes = parallel_state(), job["train"]

    def form_groups(rank: int, requests: GroupRequests) -> dict[str, Any]:
        try:
            initialize(state, sizes, create_gloo_process_groups=False)
            groups = {kind: _group(state, getters) for kind, getters in _MEGATRON.items()}
            groups["embedding"] = _embedding_group(state, rank)
            return {
                "groups": {kind: ranks for kind, ranks in groups.items() if ranks is not None},
                "next": state.get_pipeline_model_parallel_next_rank(),
                "previous": state.get_pipeline_model_parallel_prev_rank(),
                "asked": len(requests),
                "digest": requests.digest,
            }
        finally:
            state.destroy_model_parallel()

    return form_groups


def _group(state: Any, getters: tuple[tuple[str, dict[str, bool]], ...]) -> list[int] | None:
    for name, arguments in getters:
        if hasattr(state, name):
            return members(getattr(state, name)(**arguments))
    return None


def _embedding_group(state: Any, rank: int) -> list[int] | None:
    """Return the ranks that share the word embedding with this one; None on a stage without it."""
    return members(state.get_embedding_group()) if rank in state._EMBEDDING_GLOBAL_RANKS else None


def _prepare_fsdp(job: dict[str, Any]) -> FormGroups:
    """Return how verl forms the mesh of its shards; those of sequences and of the rollout are lines of its workers."""
    workers: Any = importlib.import_module("verl.workers.fsdp_workers")

    def form_groups(_rank: int, requests: GroupRequests) -> dict[str, Any]:
        mesh = workers.create_device_mesh(job["world"], job["train"]["shard"])
        groups = {name: members(mesh.get_group(name)) for name in mesh.mesh_dim_names}
        return {"groups": groups, "asked": len(requests), "digest": requests.digest}

    return form_groups


def _prepare_vllm(job: dict[str, Any]) -> FormGroups:
    os.environ.setdefault("VLLM_PLUGINS", "")  # vllm-ascend's platform would ask for a device
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    config: Any = importlib.import_module("vllm.config")
    world, sizes = job["world"], job["rollout"]
    # The engine's whole configuration needs a device; the groups need only these values.
    config._current_vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            data_parallel_size=sizes["data"],
            tensor_parallel_size=sizes["tensor"],
            data_parallel_rank=0,
            world_size_across_dp=world,
            data_parallel_master_ip="127.0.0.1",
            get_next_dp_init_port=lambda: 0,
        )
    )
    init_group = state.init_model_parallel_group
    # The tensor group's queue in shared memory would send a message.
    state.init_model_parallel_group = lambda *args, **kwargs: init_group(
        *args, **{**kwargs, "use_message_queue_broadcaster": False}
    )

    initialize_vllm = _initialize_vllm(job, state)

    def form_groups(rank: int, requests: GroupRequests) -> dict[str, Any]:
        try:
            state.init_distributed_environment(world, rank, "env://", rank, "fake")
            initialize_vllm()
            tensor = list(state._TP.ranks)
            # vLLM before 0.8 has no groups for data and experts: one engine has a copy, its experts the tensor group.
            without = {"_DP": [rank], "_EP": tensor} if sizes["data"] == 1 else {}
            groups = {"rollout_tensor": tensor}
            for kind, name in (("rollout_data", "_DP"), ("rollout_expert", "_EP")):
                groups[kind] = list(getattr(state, name).ranks) if hasattr(state, name) else without[name]
            return {"groups": groups, "asked": len(requests), "digest": requests.digest}
        finally:
            state.destroy_model_parallel()
            state.destroy_distributed_environment()

    return form_groups


def _initialize_vllm(job: dict[str, Any], state: Any) -> Callable[[], None]:
    """Return the function that forms the rollout's groups: vLLM's own, or the trainer's replacement."""
    sizes, train = job["rollout"], job["train"]
    if not mindspeed_rl_arguments.has_them(Path(job["code"])):
        return lambda: state.initialize_model_parallel(sizes["tensor"], 1, backend="fake")
    trainers: Any = importlib.import_module(mindspeed_rl_arguments.ROLLOUT)
    trainers.init_model_parallel_group = state.init_model_parallel_group

    def initialize_as_the_trainer() -> None:
        trainers._TP = trainers._PP = None  # of the rank before
        trainers.initialize_model_parallel_for_vllm(sizes["tensor"], train["tensor"], 1, train["pipeline"])

    return initialize_as_the_trainer


_PARTS: dict[str, Callable[[dict[str, Any]], FormGroups]] = {
    "megatron": _prepare_megatron,
    "fsdp": _prepare_fsdp,
    "vllm": _prepare_vllm,
}
