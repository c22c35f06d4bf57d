"""The machines a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What a die and a host have, and the disk the checkpoints go to, in bytes.

    die: None takes the recipe's cluster.die_memory_gb. host, disk: None if not known.
    """

    die: int | None = None
    host: int | None = None
    disk: int | None = None
