"""Build a tiny model over a small layout on real gloo ranks, and run one step forward and backward.

Each rank is a fork of this process, which has imported torch and the tree. Ranks that wait for a failed one are
stopped. The caller judges what the ranks report.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from .faults import CatchAll, describe_error
from .forks import run_forks

_FAILURE_GRACE = 10.0  # seconds for the other ranks after one has failed


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the replaced names followed by one line per rank, or one line with the reason for a failure."""
    code = Path(job["code"])
    with CatchAll() as attempt:
        step, stood_in = importlib.import_module(".tiny_megatron", __package__).prepare(job)
    if attempt.problem is not None:
        yield {"unprepared": describe_error(attempt.problem, code)}
        return
    collectives = "NCCL" if job.get("device") == "cuda" else "HCCL"
    yield {"stood_in": [f"{collectives}: gloo", *stood_in]}
    world, store_file = job["world"], Path.cwd() / "meeting"
    bodies = {
        str(rank): partial(_as_rank, rank, world, store_file, job["limit"], step) for rank in range(world)
    }
    forks = run_forks(bodies, code=code, limit=job["limit"], at_once=world, grace=_FAILURE_GRACE)
    for rank, found in forks:
        yield {"rank": int(rank), **found}


def _as_rank(rank: int, world: int, store_file: Path, limit: float, step: Any) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    store = dist.FileStore(str(store_file), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=limit)
    )
    seen: dict[str, Any] = step()
    # No rank exits while another needs it. A barrier would need the accelerator's device.
    dist.all_reduce(torch.zeros(1))
    return seen
