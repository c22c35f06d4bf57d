"""Adaptation engine-sockets: every engine rank of a replica listens at a weight-sync socket of its own.

verl names a socket by the rank on the node (verl/workers/rollout/vllm_rollout/vllm_rollout.py:106@v0.8.0). Where vLLM
narrows the visible devices of each data-parallel engine, as for NPUs (vllm/v1/engine/utils.py:141 of 0.18.0), the local
ranks of every engine begin at 0. verl e0bf4c6cb adds the engine's ranks only where `data_parallel_size` is above 1, and
for a model without experts vLLM sets it to 1 (vllm/v1/engine/core.py:1070 of 0.18.0, :1161 of 0.23.0). The engine's
rank on the node, which vLLM sets for both kinds of model (core.py:1042, :1131), stays.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "engine-sockets"


def local_rank(rank: int, parallel: Any) -> int:
    """Return an engine rank's number among the replica's ranks on its node, by which its socket is named.

    Args:
        rank: The worker's local rank, counted from the engine's first or from the node's.
        parallel: vLLM's ParallelConfig in that worker, or None.
    """
    engine = getattr(parallel, "data_parallel_rank_local", None)
    if not engine or not enabled(SLUG):  # the node's first engine, or the only one
        return rank
    count(SLUG)
    ranks: int = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return int(engine) * ranks + rank % ranks
