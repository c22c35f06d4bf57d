"""Rows of a Parquet file, read by a process with little memory (parquet_child.py)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from npu_rl.common.errors import DataError
from npu_rl.common.process import start_piped
from npu_rl.data.datasets.parquet_support import pyarrow

UNLIMITED = (
    ""
    if sys.platform == "linux"
    else "note: the memory for reading Parquet is limited on Linux only, not here"
)
"""The line for people on a system without the limit."""


class ParquetRows:
    """The rows of one file, in order, to be iterated over once.

    Attributes:
        rows: Number of rows, by the footer.
        columns: Type of each column by name; as the rows, known once iteration has begun.
    """

    def __init__(
        self,
        path: Path,
        columns: Collection[str],
        counted: Collection[str] = (),
        loads: Callable[[bytes], Any] = json.loads,
    ) -> None:
        """Read nothing yet.

        Args:
            columns: The columns that are needed; those that are missing are left out.
            counted: Columns of lists of which only the length is needed.
            loads: Parses a row.
        """
        self.path = path
        self.rows = 0
        self.columns: dict[str, str] = {}
        self._wanted = (columns, counted)
        self._loads = loads

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row. Raises DataError for a damaged file, HostError without pyarrow."""
        pyarrow()
        wanted = [json.dumps(list(names)) for names in self._wanted]
        script = str(Path(__file__).with_name("parquet_child.py"))
        alike = ["-E"] if sys.flags.ignore_environment else []  # else pyarrow may be on PYTHONPATH
        process = start_piped(
            [sys.executable, *alike, script, str(self.path.absolute()), *wanted],
            {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            Path("/"),
        )
        assert process.stdout is not None
        line = b""
        try:
            for line in process.stdout:
                if line.startswith(b"{"):
                    if self.columns:
                        yield self._loads(line)
                    else:
                        self._read_head(json.loads(line))
                elif line == b"null\n":
                    return
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        raise self._damaged(
            json.loads(line) if line.startswith(b'"') else line.decode(errors="replace").strip()
        )

    def _read_head(self, head: dict[str, Any]) -> None:
        names = [name for name, _ in head["columns"]]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self._damaged(f"It has the column {twice[0]} twice.")
        if not names:
            raise self._damaged("It has no column.")
        self.rows, self.columns = head["rows"], dict(head["columns"])

    def _damaged(self, why: str) -> DataError:
        return DataError(
            "The Parquet file can't be read",
            where=str(self.path),
            why=why or "The process that read it ended early.",
            hint="Download or prepare the file again. Nothing was written.",
        )
