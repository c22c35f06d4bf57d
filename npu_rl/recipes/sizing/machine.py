"""The machines that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Memory of a die and a host, and the disk for checkpoints, in bytes.

    Attributes:
        die: None takes the recipe's cluster.die_memory_gb.
        host: None if it isn't known.
        disk: None if it isn't known.
    """

    die: int | None = None
    host: int | None = None
    disk: int | None = None
