"""The rows of a downloaded file in any of three formats: a JSON array, JSON lines or Parquet.

A number in JSON is kept as its text: 0.10 stays 0.10, and no integer is too long for Python. NaN and infinities, which
JSON does not have and Python writes for missing values, become None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import LARGEST, open_file, read_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError
from npu_rl.data.datasets.parquet_rows import ParquetRows

Progress = Callable[[float], None]
"""Called with the fraction of the input that was read, from 0 to 1."""

_LARGEST_ARRAY = 1 << 30  # bytes; deepscaler has 38 MB
_BOM = b"\xef\xbb\xbf"
_AGAIN = "Download the file again. Nothing was written."


def input_rows(path: Path, progress: Progress, fields: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield each row of a file, in order.

    Args:
        fields: Names of the columns of a Parquet file whose values are needed.

    Raises:
        DataError: For a damaged file or an invalid row.
        HostError: For errors of the disk.
    """
    with disk_errors(path), open_file(path) as file:
        head = file.read(4096)
        file.seek(0)
        if head.startswith(b"PAR1"):
            rows = _parquet_rows(path, progress, fields)
        else:
            _require_text(path, head)
            is_array = head.removeprefix(_BOM).lstrip()[:1] == b"["
            rows = _array(path) if is_array else _lines(path, file, progress)
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                why = f"It is a {type(row).__name__}, not such as {{'problem': ..., 'answer': ...}}."
                hint = "Pass the dataset's own file. Nothing was written."
                what = f"Row {number} is not an object with fields"
                raise DataError(what, where=str(path), why=why, hint=hint)
            yield row
    progress(1.0)


def _parquet_rows(path: Path, progress: Progress, fields: Collection[str]) -> Iterator[Any]:
    table = ParquetRows(path, fields, loads=_loads)
    for number, row in enumerate(table, 1):
        yield {**dict.fromkeys(table.columns), **row}
        progress(number / max(number, table.rows))


def _array(path: Path) -> Iterator[Any]:
    try:
        yield from _loads(read_file(path, _LARGEST_ARRAY).removeprefix(_BOM))
    except ValueError as error:
        raise _invalid(path, str(path), error) from None


def _lines(path: Path, file: BufferedReader, progress: Progress) -> Iterator[Any]:
    size, done = max(1, path.stat().st_size), 0
    for number, line in enumerate(iter(lambda: file.readline(LARGEST), b""), 1):
        done += len(line)
        progress(min(1.0, done / size))
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        try:
            if len(line) == LARGEST:
                raise ValueError(f"the line is longer than {LARGEST} bytes")
            if text:
                yield _loads(text)
        except ValueError as error:
            raise _invalid(path, f"{path}:{number}", error) from None


def _loads(text: bytes) -> Any:
    """Parse JSON with its numbers as text. Raises ValueError."""
    try:
        return json.loads(text.decode(), parse_float=str, parse_int=str, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit into this machine's memory") from None


def _require_text(path: Path, head: bytes) -> None:
    """Raise DataError for an empty file and for an unknown format."""
    text = head.removeprefix(_BOM).lstrip()
    if not text:
        raise DataError("The input is empty", where=str(path), hint=_AGAIN)
    if text[:1] not in (b"[", b"{"):
        lfs = text.startswith(b"version https://git-lfs")
        why = "a pointer of git-lfs, not the file itself" if lfs else f"a file that begins with {text[:20]!r}"
        raise DataError(
            "The input is neither a JSON array, nor JSON lines, nor Parquet",
            where=str(path),
            why=f"It is {why}.",
            hint="Fetch it: git lfs pull" if lfs else "npu-rl data get NAME prints how to download it.",
        )


def _invalid(path: Path, where: str, error: ValueError) -> DataError:
    if isinstance(error, UnicodeDecodeError):
        hint = f"Convert it: iconv -f ENCODING -t UTF-8 {path} > utf8.json"
        return DataError("The input is not UTF-8", where=where, why=str(error), hint=hint)
    what = "The input is not valid JSON"
    if isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith("Unterminated") or error.pos >= len(error.doc.rstrip())
    ):
        what = "The input ends too early"
    return DataError(what, where=where, why=str(error), hint=_AGAIN)
