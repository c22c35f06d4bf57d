"""Device memory outside of tensors: HCCL's buffers and CANN's context.

Where vLLM servers generate, each die has two processes, each with communicators and a context of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.memory.memory_parts import Part, Parts, present
from npu_rl.recipes.sizing.parallelism import Parallelism
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.sizing.process_groups import rollout_groups, train_groups
from npu_rl.recipes.trainer_code.citations import Place

HCCL_MB = 200
"""Default of HCCL_BUFFSIZE, in 2^20 bytes. Each communicator has two such buffers, one for each direction
(hiascend.com, CANN 9.0, maintenref/envvar/envref_07_0080)."""

_CONTEXT = 10**9
"""What a process holds beside torch's allocator and HCCL. Messages of torch_npu's allocator show 0.35 to 0.9 GiB: total
capacity less reserved less free is 0.35 in vllm-ascend#1127, 0.36 in #1987, 0.43 in #5020, 0.9 in LlamaFactory#5491."""


@dataclass(frozen=True)
class Overhead:
    """HCCL's buffers and CANN's context on one die.

    Attributes:
        inside: Parts that the rollout's engine takes off its share of the die.
        outside: The others, beside that share.
        processes: Processes on the die.
        groups: HCCL's groups of more than one rank.
        buffer_mb: Size of one buffer, in 2^20 bytes.
    """

    inside: Parts
    outside: Parts
    processes: int
    groups: int
    buffer_mb: int

    @property
    def parts(self) -> Parts:
        """All parts of the overhead."""
        return present([*self.inside.items(), *self.outside.items()])


def overhead_of(facts: PlanInputs, layout: Parallelism) -> Overhead:
    """Return the overhead on a die of a layout; zero on CPUs and GPUs."""
    given = facts.env.get("HCCL_BUFFSIZE", "").strip()
    size = int(given) if given.isascii() and given.isdigit() and int(given) > 0 else HCCL_MB
    processes = 2 if facts.server_mode else 1
    if not facts.npu:
        return Overhead({}, {}, processes, 0, size)
    early, late = hccl_groups(facts, layout)
    alone, one = counts_only_itself(facts), 2 * size * 2**20
    groups, inside = len(early) + len(late), len(_engine_groups(facts, layout) if alone else early)
    in_share, others = [(Part.HCCL, inside * one)], [(Part.HCCL, (groups - inside) * one)]
    (others if alone else in_share).append((Part.CONTEXT, processes * _CONTEXT))
    return Overhead(present(in_share), present(others), processes, groups, size)


# vLLM's worker takes a snapshot of the device when it starts, and takes off its share only what has grown since.
SNAPSHOT = {
    "npu": Place(
        "vllm_ascend/worker/worker.py", "self.init_snapshot = MemorySnapshot()", ("v0.18.0", "v0.23.0")
    ),
    "cuda": Place(
        "vllm/v1/worker/gpu_worker.py",
        "self.init_snapshot = init_snapshot = MemorySnapshot(device=self.device)",
        ("vllm==0.18.0", "vllm==0.23.0"),
    ),
}


def counts_only_itself(facts: PlanInputs) -> bool:
    """Return whether the engine runs in its own process and subtracts only its own memory from its share.

    Its process has its context when it takes the snapshot, and not yet its communicators (NPUWorker._init_device,
    vllm_ascend/worker/worker.py:266@v0.18.0; memory_profiling, vllm/utils/mem_utils.py@0.18.0).
    """
    place = SNAPSHOT.get(facts.recipe.device)
    return facts.server_mode and place is not None and facts.upstream.has(place)


def hccl_groups(facts: PlanInputs, layout: Parallelism) -> tuple[list[str], list[str]]:
    """Return the kinds of HCCL groups with more than one rank that a die belongs to: early ones and late ones.

    A communicator allocates its buffers at its first collective, and no buffer is ever freed. Early are those that have
    had one when the engine measures the die, at the end of its profiling (determine_available_memory,
    vllm_ascend/worker/worker_v1.py@v0.9.1rc2): the KV cache gives way to them. A phase's peak has all. An engine that
    counts only itself takes none of training's off its share.

    - `world`, the default group: barriers and objects while the workers start.
    - Megatron: verl builds the actor before the rollout, and its get_model broadcasts the parameters
      (verl/utils/megatron_utils.py:160@55e3c5b, :137@54c9b73): dense ones over the data-parallel group with context,
      experts over the expert-data-parallel one (broadcast_params, megatron/core/distributed/
      distributed_data_parallel.py:503@core_v0.12.1, :285@core_r0.8.0). Making the optimizer has no collective, and
      loading a checkpoint needs `world`. The other groups begin with the first pass, or later. A few, counted all the
      same, may never be used; communicators of two ranks for point-to-point transfers are not counted.
    - FSDP: sync_module_states broadcasts over the sharded and the replicated group (verl/workers/fsdp_workers.py:384
      @796871d). FSDP2 loads over `world`.
    - The engine's profiling has one prefill: all-reduces of the tensor group and, with expert parallelism, all-to-alls
      over the expert group (get_fused_moe_state, vllm_ascend/ascend_forward_context.py@v0.9.1rc2). Where the tree has
      a group for MC2, layers of experts ask for its communicator when they are made (ops/fused_moe.py:980@v0.9.1rc2).
      Engines tell each other their sizes over gloo, but over HCCL at f20869e (patch/platform/patch_common/
      patch_distributed.py:43, worker/model_runner_v1.py:614).

    tests/plan/test_first_collectives.py executes the part of training.
    """
    sizes = train_groups(layout)
    sizes.pop("rollout_tensor", None)  # the engine's, below
    if layout.megatron:
        if not layout.model.experts:
            sizes = {name: size for name, size in sizes.items() if not name.startswith("expert")}
        first = EARLY_MEGATRON
    else:  # a group of all ranks is the default one
        sizes = {name: size for name, size in sizes.items() if size < layout.world}
        first = EARLY_FSDP if layout.strategy == "fsdp" else frozenset()
    early = ["world"] if layout.world > 1 else []
    early += [name for name, size in sizes.items() if size > 1 and name in first]
    late = [name for name, size in sizes.items() if size > 1 and name not in first]
    return early + _engine_groups(facts, layout), late


EARLY_MEGATRON, EARLY_FSDP = frozenset({"data_context", "expert_data"}), frozenset({"fsdp", "ddp"})
"""Kinds of `train_groups` that have had a collective when the rollout's engine is made."""

_MC2 = Place(
    "vllm_ascend/distributed/parallel_state.py",
    "_MC2: Optional[GroupCoordinator]",
    ("v0.9.1rc2", "vllm-ascend==0.9.1", "1de16ea"),
)
# Since then a layer of experts makes each way of dispatching, with experts divided or not.
_MC2_ALWAYS = Place(
    "vllm_ascend/ops/fused_moe/moe_comm_method.py",
    "_MoECommMethods[MoECommType.MC2] = MC2CommImpl(moe_config)",
    ("v0.18.0", "v0.23.0"),
)
_DATA_OVER_HCCL = Place(
    "vllm_ascend/patch/platform/patch_common/patch_distributed.py", 'backend="hccl")', ("e1d282d",)
)


def _engine_groups(facts: PlanInputs, layout: Parallelism) -> list[str]:
    if layout.rollout is None:
        return []
    sizes = rollout_groups(layout.rollout)
    experts = bool(layout.model.experts) and facts.expert_parallel
    used = {
        "rollout_tensor": True,
        "rollout_data": not experts or facts.upstream.has(_DATA_OVER_HCCL),
        "rollout_expert": experts,
    }
    found = [name for name, size in sizes.items() if size > 1 and used[name]]
    always = bool(layout.model.experts) and facts.upstream.has(_MC2_ALWAYS)
    if sizes["rollout_expert"] > 1 and (always or (experts and facts.upstream.has(_MC2))):
        found.append("rollout_mc2")
    return found
