"""Memory of a host: offloaded and swapped parts, verl's temporary copies, processes, Ray's object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from npu_rl.recipes.memory.memory_parts import Part, Parts, present, total
from npu_rl.recipes.memory.training_memory import StageMemory

_PROCESS = 3 * 10**9
"""One process's interpreter with torch, vLLM and CANN. A guess: nobody has published it."""
_STORE_SHARE, _STORE_MOST = 0.3, 200 * 10**9  # ray/_private/ray_constants.py@2.42.1, DEFAULT_OBJECT_STORE_*


def host_parts(
    stages: Sequence[StageMemory], world: int, dies: int, engine: int = 0, processes: int = 1
) -> Parts:
    """Return the memory of the node whose dies offload the most.

    Args:
        stages: Training's memory by pipeline stage.
        world: All dies.
        dies: Dies of a node.
        engine: Bytes of a die's engine that wait on the host while it sleeps.
        processes: Processes of a die: one, or two where a vLLM server generates.

    verl's older workers move a buffer of weights with `.cpu().pin_memory()` (verl/utils/megatron_utils.py:337@55e3c5b):
    a pageable and a new pinned copy stand beside the old pinned one, and torch keeps freed pinned memory for the next
    time.
    """
    per_stage, last = max(1, world // len(stages)), len(stages) - 1
    # The dies of each stage that a node has; most nodes have the same.
    nodes = dict.fromkeys(
        tuple(Counter(min(rank // per_stage, last) for rank in range(begin, begin + dies)).items())
        for begin in range(0, world, dies)
    )
    sums = (
        present((part, count * size) for stage, count in node for part, size in stages[stage].on_host.items())
        for node in nodes
    )
    most = max(sums, key=total, default={})
    programs = dies * processes * _PROCESS
    return present([*most.items(), (Part.ENGINE_WEIGHTS, dies * engine), (Part.PROCESSES, programs)])


def object_store(memory: int) -> int:
    """Return Ray's default size of its object store on a host with the given memory."""
    return min(int(memory * _STORE_SHARE), _STORE_MOST)
