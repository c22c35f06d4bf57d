"""A world of any size in one process: torch's fake process group, and a note of every group that is asked for.

The fake group is torch's own (`torch.testing._internal.distributed.fake_pg`): groups are formed and answer for their
ranks, but nothing is ever sent. Whatever backend a group is asked for (HCCL, gloo), it gets the fake one.
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


class Asked:
    """The groups one rank has asked for, in order. Every rank has to ask for the same, or real ones wait for ever."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def note(self, ranks: list[int] | None) -> None:
        """One more group; None is all ranks."""
        self.count += 1
        self._hash.update(f"{ranks}\n".encode())

    @property
    def digest(self) -> str:
        """The same for two ranks if they asked for the same groups in the same order."""
        return self._hash.hexdigest()[:16]


@contextmanager
def as_rank(rank: int, world: int) -> Iterator[Asked]:
    """Be `rank` of `world`. Process groups are gone afterwards."""
    asked = Asked()

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        asked.note(None if ranks is None else [int(rank) for rank in ranks])
        kwargs["backend"] = "fake"
        kwargs.pop("pg_options", None)
        return _new_group(ranks, *args[:1], **kwargs)

    dist.new_group = distributed_c10d.new_group = new_group
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield asked
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.new_group = distributed_c10d.new_group = _new_group


def members(group: Any) -> list[int]:
    """Global ranks of a group."""
    return [int(rank) for rank in dist.get_process_group_ranks(group)]
