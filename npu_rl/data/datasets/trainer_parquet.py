"""Parquet files in the format that verl loads, the same byte for byte each time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from npu_rl.common.disk import disk_errors
from npu_rl.data.datasets.parquet_support import pyarrow

ROWS_PER_GROUP = 2000


def schema() -> Any:
    """Return the Arrow schema. It is the same for all datasets, so that verl can concatenate their files."""
    arrow, _ = pyarrow()
    text = arrow.string()
    message = arrow.struct({"role": text, "content": text})
    extra = {"split": text, "index": arrow.int64(), "question": text, "answer": text}
    return arrow.schema(
        {
            "data_source": text,
            "prompt": arrow.list_(message),
            "ability": text,
            "reward_model": arrow.struct({"style": text, "ground_truth": text}),
            "extra_info": arrow.struct(extra),
        }
    )


class TrainerParquet:
    """A Parquet file being written, row by row. A context manager; the file is complete after it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        arrow, parquet = pyarrow()
        self._arrow = arrow
        self._schema = schema()
        self._waiting: list[dict[str, Any]] = []
        with disk_errors(path):
            self._file = path.open("wb")
            self._writer = parquet.ParquetWriter(self._file, self._schema)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row. Raises HostError for a full disk."""
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) == ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        with disk_errors(self.path):
            self._writer.write_table(self._arrow.Table.from_pylist(self._waiting, self._schema))
        self._waiting = []

    def __enter__(self) -> TrainerParquet:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                if self._waiting:
                    self._write_group()
                with disk_errors(self.path):
                    self._writer.close()
                    self._file.flush()
                    os.fsync(self._file.fileno())
        finally:
            # After an error the file is thrown away; a writer that is left open complains when it is collected.
            with contextlib.suppress(OSError, ValueError, self._arrow.ArrowException):
                self._writer.close()
            with contextlib.suppress(OSError):
                self._file.close()
