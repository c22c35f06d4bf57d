"""A world of any size in one process: torch's fake process group, and a record of every group that is requested.

The fake group is torch's own (`torch.testing._internal.distributed.fake_pg`): groups are formed and know their ranks,
but nothing is ever sent. Every group gets the fake backend, whichever is requested (HCCL, gloo).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

_new_group = distributed_c10d.new_group


class GroupRequests(list[str]):
    """The groups that one rank has requested, in order. If ranks request different groups, a real run hangs."""

    @property
    def digest(self) -> str:
        """Digest of the requests, equal for ranks that requested the same groups in the same order."""
        return hashlib.sha256("".join(f"{one}\n" for one in self).encode()).hexdigest()[:16]


@contextmanager
def as_rank(rank: int, world: int) -> Iterator[GroupRequests]:
    """Act as `rank` of `world`; process groups are destroyed at the end."""
    requests = GroupRequests()

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        requests.append(str(None if ranks is None else [int(rank) for rank in ranks]))
        kwargs["backend"] = "fake"
        kwargs.pop("pg_options", None)
        return _new_group(ranks, *args[:1], **kwargs)

    dist.new_group = distributed_c10d.new_group = new_group
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield requests
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.new_group = distributed_c10d.new_group = _new_group


def members(group: Any) -> list[int]:
    """Return the global ranks of a group."""
    return [int(rank) for rank in dist.get_process_group_ranks(group)]
