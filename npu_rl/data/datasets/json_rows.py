"""Rows of a JSON array or of JSON lines, read in bounded memory.

A number is kept as its text: 0.10 stays 0.10, and no integer is too long for Python. NaN and
infinities, which JSON does not have and Python writes for missing values, become None.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from npu_rl.common.errors import DataError

CHUNK = 1 << 20  # bytes read at once
LONGEST_ROW = 1 << 24  # characters; a row of deepscaler has about a thousand
_SPACE = " \t\n\r"
_spaces: Any = re.compile(f"[{_SPACE}]*").match


def _missing(_constant: str) -> None:
    return None


class _Twice(ValueError):
    """A field that occurs twice in its object, so that its value is ambiguous."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(
            f"its field {next(name for name in names if names.count(name) > 1)[:100]!r} occurs twice"
        )
    return found


_decoder = json.JSONDecoder(
    parse_float=str, parse_int=str, parse_constant=_missing, object_pairs_hook=_object
)


class _Text:
    """The text of a UTF-8 file from the current row on, as far as it was needed."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._read = 0
        self.text = ""
        self.at = 0
        self.ended = False

    def more(self, row: int) -> bool:
        """Read more, at least doubling the pending text; return False at the end of the file."""
        if self.ended:
            return False
        self.text, self.at = self.text[self.at :], 0
        if len(self.text) > LONGEST_ROW:
            raise damaged(self._path, row, f"it is longer than {LONGEST_ROW:,} characters, or has no end")
        data = self._file.read(max(CHUNK, len(self.text)))
        self.ended = not data
        try:
            self.text += self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            why = f"byte {self._read + error.start:,} or one just before it is not UTF-8"
            raise DataError(
                "The input is not UTF-8",
                where=f"{self._path}, row {row} or later",
                why=why,
                hint=f"Convert it: iconv -f ENCODING -t UTF-8 {self._path} > utf8.json",
            ) from None
        self._read += len(data)
        return True

    def skip_space(self, row: int) -> str:
        """Return the next character that is not white space, "" at the end; it is not consumed."""
        while True:
            self.at = _spaces(self.text, self.at).end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more(row):
                return ""


def array_rows(file: IO[bytes], path: Path) -> Iterator[Any]:
    """Yield the elements of a file that is one JSON array. Raises DataError."""
    source = _Text(file, path)
    row = 0
    if source.skip_space(row) != "[":
        raise damaged(path, row, "the file does not begin with [")
    source.at += 1
    if source.skip_space(row) == "]":
        source.at += 1
    else:
        while True:
            source.skip_space(row)
            yield _value(source, path, row)
            row += 1
            mark = source.skip_space(row)
            source.at += 1
            if mark == "]":
                break
            if mark != ",":
                raise _truncated(path, row) if not mark else damaged(path, row, f"{mark!r} comes before it")
    if source.skip_space(row):
        raise damaged(path, row, "there is more text after the array's end")


def line_rows(file: IO[bytes], path: Path) -> Iterator[Any]:
    """Yield the values of a file with one JSON value a line; empty lines are skipped. Raises DataError."""
    source = _Text(file, path)
    row = 0
    while source.skip_space(row):
        yield _value(source, path, row)
        row += 1
        end = source.text.find("\n", source.at)
        while end < 0 and source.more(row):
            end = source.text.find("\n", source.at)
        rest = source.text[source.at : end if end >= 0 else None].strip()
        if rest:
            raise damaged(path, row - 1, "its line has more text after it: one value per line is needed")


def _value(source: _Text, path: Path, row: int) -> Any:
    """Parse the value at the source's position."""
    while True:
        try:
            value, end = _decoder.raw_decode(source.text, source.at)
            if end == len(source.text) and value.__class__ is not dict and source.more(row):
                continue  # a number or a word may go on
            source.at = end
            return value
        except json.JSONDecodeError as error:
            if _may_go_on(error, source.text) and source.more(row):
                continue
            if not source.text[source.at :].strip() or (source.ended and _may_go_on(error, source.text)):
                raise _truncated(path, row) from None
            raise damaged(path, row, f"{error.msg} ({_around(source.text, error.pos)})") from None
        except _Twice as error:
            raise damaged(path, row, str(error)) from None
        except RecursionError:
            raise damaged(path, row, "it is nested too deeply") from None


def _may_go_on(error: json.JSONDecodeError, text: str) -> bool:
    """Return whether more text could correct the error: a string is open, or it is near the end of what was read."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip(_SPACE)) - 12


def _around(text: str, position: int) -> str:
    return f"at {text[max(0, position - 20) : position + 20]!r}"


def damaged(path: Path, row: int, why: str) -> DataError:
    """Return the error for a row that is not valid."""
    return DataError(
        f"Row {row} is not valid JSON",
        where=str(path),
        why=f"Row {row} (counted from 0): {why}",
        hint="Download the file again, or correct that row. Nothing was written.",
    )


def _truncated(path: Path, row: int) -> DataError:
    return DataError(
        "The input ends too early",
        where=str(path),
        why=f"Row {row} (counted from 0) or the array is cut off.",
        hint="Download the file again. Nothing was written.",
    )
