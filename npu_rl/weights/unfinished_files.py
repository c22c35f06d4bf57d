"""Files that a killed cast or conversion has not finished: named as npu_rl_tensors names them (`part_file.py`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from npu_rl.disk import disk_errors

_UNFINISHED = re.compile(r"(?P<of>.+?)(\.[0-9a-f]{8})?\.part(\.places\.json(\.part)?)?")


def remove_unfinished(folder: Path, files: Iterable[str]) -> None:
    """Remove the unfinished files of an output folder; a file with another name is not ours.

    Args:
        files: The output's own files, as paths in the folder.

    Raises:
        HostError: For errors of the disk.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for file in map(PurePosixPath, files):
        names[str(file.parent)].add(file.name)
    with disk_errors(folder):
        for parent, own in names.items():
            below = folder / parent
            if not below.is_dir():
                continue
            for path in list(below.iterdir()):
                found = _UNFINISHED.fullmatch(path.name)
                if found and found["of"] in own and path.is_file() and not path.is_symlink():
                    path.unlink()
