"""The processes of a conversion: who they are, and that they go on or stop together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .errors import ConversionError

T = TypeVar("T")


@contextlib.contextmanager
def ranks() -> Iterator[Ranks]:
    """The ranks this process is one of: of the process group that is there, of torchrun's, or this one alone.

    A group made here is of gloo, on NPUs too: a conversion sends names and sizes, and no tensor ever leaves the host.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        yield Ranks()
        return
    # Before there is a group: one that is there when they are imported is kept in them as a default, and with it its
    # threads, which now and then abort the process at its end.
    import megatron.core.dist_checkpointing.strategies.torch  # noqa: F401
    import torch.distributed.checkpoint  # noqa: F401

    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield Ranks()
    finally:
        dist.destroy_process_group()


class Ranks:
    """The default process group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank = int(dist.get_rank())
        self.world = int(dist.get_world_size())

    def together(self, work: Callable[[], T]) -> T:
        """What `work` gives on this rank, once it is done on every rank.

        Raises ConversionError on every rank if it did on any: none goes on alone, and none waits for one that stopped.
        """
        import torch.distributed as dist

        result, problem = _attempt(work)
        problems: list[Any] = [None] * self.world
        dist.all_gather_object(problems, problem)
        wrong = {rank: text for rank, text in enumerate(problems) if text}
        if not wrong:
            return result  # type: ignore[return-value]
        first = min(wrong)
        if len(set(wrong.values())) == 1 and len(wrong) == self.world:
            raise ConversionError(wrong[first])
        raise ConversionError(f"rank {first} of {self.world}: {wrong[first]}")

    def first(self, work: Callable[[], object]) -> None:
        """Have rank 0 do something the others wait for. Raises as `together` does."""
        self.together(lambda: work() if self.rank == 0 else None)

    def say(self, text: str) -> None:
        """A line of its own on stdout, whatever the other ranks print meanwhile."""
        print(f"converter, rank {self.rank} of {self.world}: {text}\n", end="", flush=True)


def _attempt(work: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return work(), None
    except ConversionError as error:
        return None, str(error)
