"""The rows of a downloaded file in any of three formats: a JSON array, JSON lines or Parquet."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from npu_rl.common.bounded import chunks, open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError
from npu_rl.data.datasets.bounded_parquet import BoundedParquet, too_long
from npu_rl.data.datasets.json_rows import LONGEST_ROW, array_rows, line_rows
from npu_rl.data.datasets.parquet_pages import InvalidPage
from npu_rl.data.datasets.parquet_support import pyarrow

if TYPE_CHECKING:
    from io import BufferedReader

Progress = Callable[[float], None]
"""Called with the fraction of the input that was read, from 0 to 1."""

BATCH = 32  # rows of a Parquet file that are held at once; a few bytes of one can be a text of megabytes
_PARQUET, _GZIP, _ZIP, _ZSTD = b"PAR1", b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"


class _Counted:
    """A file whose reads are counted and hashed; reading beyond its stated size raises OSError."""

    def __init__(self, file: IO[bytes], path: Path, progress: Progress) -> None:
        self._file = file
        self._path = path
        self._size = os.fstat(file.fileno()).st_size
        self._progress = progress
        self._done = 0
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        self._done += len(data)
        if self._done > self._size:  # of a file of /proc that is 0, and its content may have no end
            raise OSError(errno.EOVERFLOW, "It has more bytes than its size states", str(self._path))
        self._progress(min(1.0, self._done / self._size) if self._size else 1.0)
        return data


class InputRows:
    """The rows of one file, in order, to be iterated over once.

    Attributes:
        sha256: SHA-256 of the whole file; known after the last row.
    """

    def __init__(self, path: Path, progress: Progress, fields: Collection[str] | None = None) -> None:
        """Read nothing yet.

        Args:
            fields: Names of the columns of a Parquet file whose values are needed; None for all.
        """
        self.path = path
        self.sha256 = ""
        self._fields = fields
        self._progress = progress

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each row. Raises DataError for a damaged file or an invalid row, HostError for the disk."""
        with disk_errors(self.path), _opened(self.path) as file:
            head = file.read(4096)
            file.seek(0)
            if head.startswith(_PARQUET):
                yield from self._parquet(file)
                return
            _require_text(self.path, head)
            counted: Any = _Counted(file, self.path, self._progress)
            first = head.removeprefix(_BOM).lstrip()[:1]
            rows = array_rows(counted, self.path) if first == b"[" else line_rows(counted, self.path)
            for number, row in enumerate(rows):
                if not isinstance(row, dict):
                    raise _no_object(self.path, number, row)
                yield row
            self.sha256 = counted.digest.hexdigest()

    def _parquet(self, file: BufferedReader) -> Iterator[dict[str, Any]]:
        arrow, _ = pyarrow()
        try:
            table = BoundedParquet(file, self.path)
            names = table.schema.names
            _require_once(self.path, names)
            plain = [
                field.name
                for field in table.schema
                if (self._fields is None or field.name in self._fields) and _is_plain(arrow, field.type)
            ]
            others = {name: None for name in names if name not in plain}
            done = 0
            for batch in table.batches(plain, BATCH):
                for row in batch.to_pylist() if plain else ({} for _ in range(batch.num_rows)):
                    _require_bounded(self.path, done, row)
                    yield {**others, **row}
                    done += 1
                self._progress(done / table.rows if table.rows else 1.0)
        except (arrow.ArrowException, InvalidPage, OSError, UnicodeDecodeError) as error:
            raise DataError(
                "The Parquet file is damaged",
                where=str(self.path),
                why=str(error)[:300],
                hint="Download the file again. Nothing was written.",
            ) from error
        file.seek(0)
        digest = hashlib.sha256()
        for data in chunks(file):
            digest.update(data)
        self.sha256 = digest.hexdigest()


def _is_plain(arrow: Any, kind: Any) -> bool:
    """Return whether a column has texts or numbers. Others are skipped: they hold no answer, but dates out of range."""
    types = arrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
    )


def _require_once(path: Path, names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(
            f"The Parquet file has the column {twice[0]} twice",
            where=str(path),
            hint="Pass the dataset's own file. Nothing was written.",
        )


def _require_bounded(path: Path, number: int, row: dict[str, Any]) -> None:
    if any(isinstance(value, str) and len(value) > LONGEST_ROW for value in row.values()):
        raise too_long(path, number)


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
    for magic, what, how in (
        (_GZIP, "gzip", "gunzip"),
        (_ZIP, "zip", "unzip"),
        (_ZSTD, "zstd", "zstd -d"),
    ):
        if head.startswith(magic):
            raise DataError(
                f"The input is a {what} archive", where=str(path), hint=f"Unpack it first: {how} {path}"
            )
    text = head.removeprefix(_BOM).lstrip()
    if not text:
        raise DataError("The input is empty", where=str(path), hint="Download the file again.")
    if text[:1] not in (b"[", b"{"):
        lfs = text.startswith(b"version https://git-lfs")
        page = text[:1] == b"<"
        raise DataError(
            "The input is neither a JSON array, nor JSON lines, nor Parquet",
            where=str(path),
            why="It is a pointer of git-lfs, not the file itself."
            if lfs
            else "It is a web page, not the file itself."
            if page
            else f"It begins with {bytes(text[:20])!r}.",
            hint="Fetch it: git lfs pull" if lfs else "npu-rl data get NAME prints how to download it.",
        )


def _no_object(path: Path, number: int, row: object) -> DataError:
    return DataError(
        f"Row {number} is {_kind(row)}, not an object with fields",
        where=str(path),
        why='Each row has to be an object, such as {"problem": ..., "answer": ...}.',
        hint="Pass the dataset's own file. Nothing was written.",
    )


def _kind(value: object) -> str:
    return {list: "a list", str: "text or a number", bool: "true or false", type(None): "null"}.get(
        type(value), type(value).__name__
    )
