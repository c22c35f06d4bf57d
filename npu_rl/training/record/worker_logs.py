"""Worker logs of a Ray cluster that a run started, kept in the run's record."""

from __future__ import annotations

import contextlib
from pathlib import Path

from npu_rl.common.bounded import chunks, open_file
from npu_rl.common.disk import private

_LOG_LIMIT = 32 << 20  # bytes kept of one worker's log
_MAXIMUM_LOGS = 4096


def keep_worker_logs(ray: Path, target: Path) -> None:
    """Copy the logs of Ray's processes, only the end of long ones. Unreadable files are skipped."""
    found = [
        path for path in sorted(ray.glob("session_2*/logs/*")) if path.is_file() and not path.is_symlink()
    ]
    for path in found[:_MAXIMUM_LOGS]:
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                continue
            with open_file(path) as source, open(target / path.name, "wb", opener=private) as copy:
                source.seek(max(path.stat().st_size - _LOG_LIMIT, 0))
                copy.writelines(chunks(source))
