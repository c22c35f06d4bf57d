"""Memory of a die besides tensors: HCCL's buffers and CANN's context."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.memory.memory_parts import Part, Parts, present
from npu_rl.sizing.parallelism import Parallelism
from npu_rl.sizing.plan_inputs import Facts
from npu_rl.sizing.process_groups import rollout_groups, train_groups

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
        early: Parts that are allocated before the rollout's engine measures the die.
        late: Parts that training allocates after that.
        groups: HCCL's groups of more than one rank.
        buffer_mb: Size of one buffer, in 2^20 bytes.
    """

    early: Parts
    late: Parts
    groups: int
    buffer_mb: int

    @property
    def parts(self) -> Parts:
        """All parts."""
        return present([*self.early.items(), *self.late.items()])


def overhead_of(facts: Facts, layout: Parallelism) -> Overhead:
    """Return the overhead on a die of a layout; nothing on a CPU.

    A communicator allocates its buffers at its first collective. Counted are those of more than one rank: all ranks,
    the training's, the engine's and, where it divides experts, vllm-ascend's own for MC2
    (vllm_ascend/distributed/parallel_state.py:8@v0.9.1rc2).
    """
    sizes = train_groups(layout)
    training = sum(size > 1 for size in sizes.values())
    engine = 0
    if layout.rollout is not None:
        engine = sum(size > 1 for size in rollout_groups(layout.rollout).values())
        if layout.model.experts and facts.expert_parallel:
            engine += layout.rollout.tensor * layout.rollout.data > 1
    if (
        not layout.megatron
    ):  # FSDP's group of all ranks is the first; the engine's tensor group is counted above
        others = {name: size for name, size in sizes.items() if name != "rollout_tensor"}
        training = sum(1 < size < layout.world for size in others.values())
    size = buffer_mb(facts)
    if not facts.npu:
        return Overhead({}, {}, 0, size)
    one = 2 * size * 2**20
    first = 1 if layout.world > 1 else 0
    early = present([(Part.HCCL, (first + engine) * one), (Part.CONTEXT, _CONTEXT)])
    return Overhead(early, present([(Part.HCCL, training * one)]), first + engine + training, size)


def buffer_mb(facts: Facts) -> int:
    """Return HCCL_BUFFSIZE in 2^20 bytes; its default if it isn't set or is no number."""
    given = facts.env.get("HCCL_BUFFSIZE", "").strip()
    return int(given) if given.isascii() and given.isdigit() and int(given) > 0 else HCCL_MB
