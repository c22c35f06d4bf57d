"""Choice of a command's workers: on this host, or on the hosts of a Ray cluster."""

from __future__ import annotations

import os
import sys

from npu_rl.weights.checkpoints.worker_pool import Workers

_MOST = 16  # workers by default: more wait for one disk


def pool_of(
    python: str | None, count: int | None, *, inherit_path: bool = False, ray: str | None = None
) -> Workers:
    """Return the requested number of workers, by default one per usable CPU, and divide the CPUs among them.

    Args:
        ray: Address of a Ray cluster, on each of whose hosts as many are started.

    Raises:
        UsageError: If the address is invalid.
    """
    if ray is not None:
        from npu_rl.weights.checkpoints.ray_workers import RayWorkers, require_address

        require_address(ray)
        return RayWorkers(python or sys.executable, count or _MOST, address=ray)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = count or min(cpus, _MOST)
    return Workers(python or sys.executable, count, max(1, cpus // count), inherit_path)
