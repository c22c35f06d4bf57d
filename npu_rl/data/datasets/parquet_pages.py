"""Page headers of a Parquet file, which give a column's unpacked size before anything is unpacked.

The file's metadata gives sizes, too, but the decoder allocates what each page's own header says
(parquet-format, src/main/thrift/parquet.thrift, PageHeader; thrift's doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

_LARGEST_HEADER = 1 << 24  # bytes; the decoder's own
_LARGEST_FIELD = 100  # number of a field; parquet.thrift has up to 9
_DEEPEST = 4  # structs in one another; parquet.thrift has 3
_TYPE, _SIZE, _STORED = 1, 2, 3
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_OF_TYPE = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}
"""The field with what is particular to a type of page."""
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, 12


class InvalidPage(ValueError):
    """A page header that is not valid."""


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        size: Bytes that the decoder allocates for it: the larger of packed and unpacked.
        values: Number of values; 0 for a dictionary.
        encoding: Encoding of its values, by parquet.thrift's number.
    """

    size: int
    values: int
    encoding: int


def read_pages(file: IO[bytes], start: int, length: int, values: int) -> Iterator[Page]:
    """Yield the pages of a column chunk, as the decoder reads them: until `values` or `length` bytes are read.

    Raises:
        InvalidPage: For a header that is not valid.
        OSError: If the file can't be read.
    """
    at, end = start, start + length
    while values > 0 and at < end:
        header, after = _header(file, at)
        size, stored, kind = (_number_in(header, field) for field in (_SIZE, _STORED, _TYPE))
        own = header.get(_OF_TYPE.get(kind, 0), {})
        if not isinstance(own, dict):
            raise InvalidPage("a page header has no valid description of its values")
        count = _number_in(own, 1) if kind in (_DATA, _DATA_2) and own else 0
        yield Page(max(size, stored), count, own.get(4 if kind == _DATA_2 else 2, 0))
        values -= count
        at = after + stored


def _number_in(fields: dict[int, Any], field: int) -> int:
    number = fields.get(field)
    if not isinstance(number, int) or not 0 <= number < 1 << 31:
        raise InvalidPage(f"field {field} of a page header is not a size")
    return number


def _header(file: IO[bytes], at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the page header at an offset, and the offset of its page."""
    most = 1 << 8
    while True:
        file.seek(at)
        data = file.read(most)
        try:
            thrift = _Thrift(data)
            return thrift.struct(0), at + thrift.at
        except IndexError:
            if len(data) < most or most >= _LARGEST_HEADER:
                raise InvalidPage("a page header has no end") from None
            most <<= 4


class _Thrift:
    """A reader of thrift's compact protocol. Raises IndexError where the data ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        last = 0
        while head := self._byte():
            last = last + (head >> 4) if head >> 4 else self._number()
            if last in fields or not 0 < last <= _LARGEST_FIELD:  # the decoder keeps 16 bits of it
                raise InvalidPage("a page header has an unknown field, or one twice")
            fields[last] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in _INTEGERS:
            return self._number()
        if kind == _DOUBLE:
            return self._skip(8)
        if kind == _BINARY:
            return self._skip(self._varint())
        if depth < _DEEPEST and kind == _STRUCT:
            return self.struct(depth + 1)
        raise InvalidPage(f"a page header has a field of type {kind}")

    def _number(self) -> int:
        raw = self._varint()
        return (raw >> 1) ^ -(raw & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise InvalidPage("a page header has a number without end")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError
