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

from npu_rl.common.bounded import LARGEST, hash_file, open_file, read_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError
from npu_rl.data.datasets.parquet_rows import ParquetRows

Progress = Callable[[float], None]
"""Called with the fraction of the input that was read, from 0 to 1."""

_LARGEST_ARRAY = 1 << 30  # bytes; deepscaler has 38 MB
_ARCHIVES = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
)
_BOM = b"\xef\xbb\xbf"
_AGAIN = "Download the file again. Nothing was written."


class InputRows:
    """The rows of one file, in order, to be iterated over once.

    Attributes:
        sha256: SHA-256 of the whole file; known after the last row.
    """

    def __init__(self, path: Path, progress: Progress, fields: Collection[str]) -> None:
        """Read nothing yet.

        Args:
            fields: Names of the columns of a Parquet file whose values are needed.
        """
        self.path = path
        self.sha256 = ""
        self._fields = fields
        self._progress = progress

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row. Raises DataError for a damaged file or an invalid row, HostError for the disk."""
        with disk_errors(self.path):
            with _opened(self.path) as file:
                head = file.read(4096)
                file.seek(0)
                if head.startswith(b"PAR1"):
                    rows: Iterator[Any] = self._parquet()
                else:
                    _require_text(self.path, head)
                    is_array = head.removeprefix(_BOM).lstrip()[:1] == b"["
                    rows = self._array() if is_array else self._lines(file)
                for number, row in enumerate(rows):
                    if not isinstance(row, dict):
                        raise _no_object(self.path, number, row)
                    yield row
            self._progress(1.0)
            self.sha256 = hash_file(self.path)

    def _parquet(self) -> Iterator[Any]:
        table = ParquetRows(self.path, self._fields, loads=_loads)
        for number, row in enumerate(table, 1):
            yield {**dict.fromkeys(table.columns), **row}
            self._progress(number / max(number, table.rows))

    def _array(self) -> Iterator[Any]:
        try:
            yield from _loads(read_file(self.path, _LARGEST_ARRAY).removeprefix(_BOM))
        except ValueError as error:
            raise _invalid(self.path, str(self.path), error) from None

    def _lines(self, file: BufferedReader) -> Iterator[Any]:
        size, done = max(1, self.path.stat().st_size), 0
        for number, line in enumerate(iter(lambda: file.readline(LARGEST), b""), 1):
            done += len(line)
            self._progress(min(1.0, done / size))
            text = (line.removeprefix(_BOM) if number == 1 else line).strip()
            if not text:
                continue
            try:
                if len(line) == LARGEST:
                    raise ValueError(f"the line is longer than {LARGEST} bytes")
                yield _loads(text)
            except ValueError as error:
                raise _invalid(self.path, f"{self.path}:{number}", error) from None


def _loads(text: bytes) -> Any:
    """Parse JSON with its numbers as text. Raises ValueError."""
    try:
        return json.loads(text.decode(), parse_float=str, parse_int=str, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit into this machine's memory") from None


def _opened(path: Path) -> BufferedReader:
    try:
        return open_file(path)
    except FileNotFoundError:
        raise DataError("No such file", where=str(path), hint="Pass a file to --input.") from None
    except OSError as error:
        if path.exists() and not path.is_file():
            raise DataError(
                "The input is not a file", where=str(path), hint="Pass one file to --input."
            ) from error
        raise


def _require_text(path: Path, head: bytes) -> None:
    """Raise DataError for an empty file and for an unknown format."""
    for magic, what, how in _ARCHIVES:
        if head.startswith(magic):
            raise DataError(
                f"The input is a {what} archive", where=str(path), hint=f"Unpack it first: {how} {path}"
            )
    text = head.removeprefix(_BOM).lstrip()
    if not text:
        raise DataError("The input is empty", where=str(path), hint=_AGAIN)
    if text[:1] not in (b"[", b"{"):
        lfs = text.startswith(b"version https://git-lfs")
        why = "a pointer of git-lfs, not the file itself" if lfs else f"text that begins with {text[:20]!r}"
        raise DataError(
            "The input is neither a JSON array, nor JSON lines, nor Parquet",
            where=str(path),
            why=f"The file is {'a web page' if text[:1] == b'<' else why}.",
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


def _no_object(path: Path, number: int, row: object) -> DataError:
    kinds = {list: "a list", str: "text or a number", bool: "true or false", type(None): "null"}
    return DataError(
        f"Row {number} is {kinds[type(row)]}, not an object with fields",
        where=str(path),
        why='Each row has to be an object, such as {"problem": ..., "answer": ...}.',
        hint="Pass the dataset's own file. Nothing was written.",
    )
