"""Names of files that are not whole yet."""

from __future__ import annotations

import os
from pathlib import Path


def part_of(target: Path) -> Path:
    """Return a name beside a file that no other process writes to.

    Ray runs a task again when its host does not answer; the first may still be writing.
    """
    return target.with_name(f"{target.name}.{os.urandom(4).hex()}.part")
