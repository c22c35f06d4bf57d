"""JSON lines with a problem and its right answer, for other trainers' preprocessors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npu_rl.common.disk import disk_errors


class PlainRows:
    """A file being written, row by row; it has the interface of TrainerParquet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        with disk_errors(path):
            self._file = path.open("w", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        """Add a row. Raises HostError for a full disk."""
        plain = {"problem": row["extra_info"]["question"], "answer": row["reward_model"]["ground_truth"]}
        with disk_errors(self.path):
            self._file.write(json.dumps(plain, ensure_ascii=False) + "\n")
        self.rows += 1

    def __enter__(self) -> PlainRows:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with disk_errors(self.path):
            self._file.close()
