"""New files that get their names once they are whole."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

PART = ".part"  # after the name of a file that is not whole
PLACES = ".places.json"  # beside a file of torch_dist until .metadata has what is in it


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Yield a new file beside the target, which takes its place once it is whole and on disk.

    One that a killed command has left is replaced. A system's error while writing gets the file's name.
    """
    part = target.with_name(target.name + PART)
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)
        raise


def write_file(target: Path, content: bytes) -> None:
    """Write a whole file."""
    with new_file(target) as out:
        out.write(content)


def write_json(target: Path, content: Any) -> None:
    """Write a whole JSON file."""
    write_file(target, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
