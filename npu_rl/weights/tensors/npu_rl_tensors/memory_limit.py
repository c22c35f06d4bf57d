"""A limit on the memory that opening one untrusted file may take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOM = 4 << 30  # bytes, besides the file's own size


@contextlib.contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Limit the address space of this process to what it has, `size` bytes and 4 GiB; on Linux only.

    What needs more gets a MemoryError.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + size + ROOM
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
