"""Forms the process groups of a layout as every one of its ranks, with the tree's own code, and says what came out.

One process is each rank in turn (about 30 ms a rank at 256 ranks), so no rank has to be taken for another's like.
Says what it saw; whether that is right is judged by the caller.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .fake_world import Asked, as_rank, members
from .faults import Caught, describe
from .megatron import initialize, parallel_state

# Kind of group -> names its getter has had in megatron.core.parallel_state (0.8 to 0.12), and arguments.
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
    """One line per part and rank: the groups it is in. A part that can't be done says why instead, and ends."""
    code = Path(job["code"])
    for part in job["parts"]:
        prepare, world = _PARTS[part], job["world"]
        with Caught() as attempt:
            form = prepare(job)
        if attempt.problem is not None:
            yield {"part": part, "unprepared": describe(attempt.problem, code)}
            continue
        for rank in range(world):
            with Caught() as attempt, as_rank(rank, world) as asked:
                seen = form(rank, asked)
            if attempt.problem is not None:
                yield {"part": part, "rank": rank, "refused": describe(attempt.problem, code)}
                break
            yield {"part": part, "rank": rank, **seen}


Form = Callable[[int, Asked], dict[str, Any]]


def _megatron(job: dict[str, Any]) -> Form:
    if job["mindspeed"]:  # it replaces parts of Megatron, so it comes first, as in training
        importlib.import_module("mindspeed.megatron_adaptor")
    state, sizes = parallel_state(), job["train"]

    def form(rank: int, asked: Asked) -> dict[str, Any]:
        try:
            initialize(state, sizes, create_gloo_process_groups=False)
            groups = {kind: _group(state, getters) for kind, getters in _MEGATRON.items()}
            groups["embedding"] = _embedding(state, rank)
            return {
                "groups": {kind: ranks for kind, ranks in groups.items() if ranks is not None},
                "next": state.get_pipeline_model_parallel_next_rank(),
                "previous": state.get_pipeline_model_parallel_prev_rank(),
                "asked": asked.count,
                "digest": asked.digest,
            }
        finally:
            state.destroy_model_parallel()

    return form


def _group(state: Any, getters: tuple[tuple[str, dict[str, bool]], ...]) -> list[int] | None:
    for name, arguments in getters:
        if hasattr(state, name):
            return members(getattr(state, name)(**arguments))
    return None


def _embedding(state: Any, rank: int) -> list[int] | None:
    """Ranks that share the word embedding with this one; None on a stage that has none."""
    return members(state.get_embedding_group()) if rank in state._EMBEDDING_GLOBAL_RANKS else None


def _fsdp(job: dict[str, Any]) -> Form:
    workers: Any = importlib.import_module("verl.workers.fsdp_workers")
    mesh_of: Any = importlib.import_module("torch.distributed.device_mesh").init_device_mesh
    world, sizes, rollout = job["world"], job["train"], job["rollout"]

    def form(_rank: int, asked: Asked) -> dict[str, Any]:
        mesh = workers.create_device_mesh(world, sizes["shard"])
        groups = {name: members(mesh.get_group(name)) for name in mesh.mesh_dim_names}
        # The two meshes below are formed inside verl's workers; their shapes are repeated here (fsdp_workers.py).
        if sizes["sequence"] > 1:
            shape = (world // sizes["sequence"], sizes["sequence"])
            sequence = mesh_of(workers.device_name, shape, mesh_dim_names=("dp", "sp"))
            groups |= {
                "data": members(sequence.get_group("dp")),
                "sequence": members(sequence.get_group("sp")),
            }
        if rollout is not None:
            shape = (world // rollout["tensor"], rollout["tensor"])
            answers = mesh_of(workers.device_name, shape, mesh_dim_names=("dp", "infer_tp"))
            groups["rollout_tensor"] = members(answers.get_group("infer_tp"))
        return {"groups": groups, "asked": asked.count, "digest": asked.digest}

    return form


def _vllm(job: dict[str, Any]) -> Form:
    os.environ.setdefault("VLLM_PLUGINS", "")  # vllm-ascend's platform would ask for a device
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    config: Any = importlib.import_module("vllm.config")
    world, sizes = job["world"], job["rollout"]
    # The engine's whole configuration needs a device; the groups ask it for these only.
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
    begin = state.init_model_parallel_group
    # The queue in shared memory, which the real tensor group has, would send a message.
    state.init_model_parallel_group = lambda *args, **kwargs: begin(
        *args, **{**kwargs, "use_message_queue_broadcaster": False}
    )

    def form(rank: int, asked: Asked) -> dict[str, Any]:
        try:
            state.init_distributed_environment(world, rank, "env://", rank, "fake")
            state.initialize_model_parallel(sizes["tensor"], 1, backend="fake")
            kinds = {"rollout_tensor": "_TP", "rollout_data": "_DP", "rollout_expert": "_EP"}
            groups = {kind: list(getattr(state, name).ranks) for kind, name in kinds.items()}
            return {"groups": groups, "asked": asked.count, "digest": asked.digest}
        finally:
            state.destroy_model_parallel()
            state.destroy_distributed_environment()

    return form


_PARTS: dict[str, Callable[[dict[str, Any]], Form]] = {"megatron": _megatron, "fsdp": _fsdp, "vllm": _vllm}
