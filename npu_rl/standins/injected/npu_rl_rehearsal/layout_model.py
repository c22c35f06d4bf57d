"""Builds a tiny model over a small layout on real gloo ranks, and takes one step forward and backward.

Each rank is a fork of this process, which has imported torch and the tree; ranks that wait for one that failed are
ended. Says what each rank saw; the caller judges.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from .faults import Caught, describe
from .forks import run_forks

_PATIENCE = 10.0  # seconds the other ranks get when one has failed
_BUILDERS = {"megatron": "tiny_megatron", "fsdp": "tiny_fsdp", "fsdp2": "tiny_fsdp"}


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """First what is stood in for, then one line per rank; or a line that says why nothing could be built."""
    code = Path(job["code"])
    with Caught() as attempt:
        builder = importlib.import_module(f".{_BUILDERS[job['strategy']]}", __package__)
        step, stood_in = builder.prepare(job)
    if attempt.problem is not None:
        yield {"unprepared": describe(attempt.problem, code)}
        return
    yield {"stood_in": ["HCCL: gloo", *stood_in]}
    world, meeting = job["world"], Path.cwd() / "meeting"
    bodies = {str(rank): partial(_as_rank, rank, world, meeting, job["limit"], step) for rank in range(world)}
    forks = run_forks(bodies, code=code, limit=job["limit"], at_once=world, patience=_PATIENCE)
    for rank, found in forks:
        yield {"rank": int(rank), **found}


def _as_rank(rank: int, world: int, meeting: Path, limit: float, step: Any) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    store = dist.FileStore(str(meeting), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=limit)
    )
    seen: dict[str, Any] = step()
    # Nobody leaves while another still needs it. Not a barrier: that would ask for the accelerator's device.
    dist.all_reduce(torch.zeros(1))
    return seen
