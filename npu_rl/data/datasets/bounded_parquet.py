"""Reading of Parquet files in bounded memory and time, however much a few of their bytes expand to."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from npu_rl.common.errors import DataError
from npu_rl.data.datasets.json_rows import LONGEST_ROW
from npu_rl.data.datasets.parquet_pages import read_pages
from npu_rl.data.datasets.parquet_support import pyarrow

_MOST_COLUMNS = 1000
_LARGEST_FOOTER = 16 << 20  # bytes; 2,000 row groups of 10 columns have 3 MB
_LARGEST_LIST = 50_000  # row groups, or columns, in the footer
_LARGEST_PAGES = 200 << 20  # bytes of the largest page of each column; DuckDB writes pages of up to 100 MB
_HELD = 4 * LONGEST_ROW  # bytes of the rows that are held at once
_ROW_COST, _VALUE_COST = 1000, 50  # bytes: a row or page, and a value, cost time without any text, too
_FREE_COST, _COST_PER_BYTE = (
    64 << 20,
    100,
)  # what may come out of a file; rows of datasets are 5 to 20 times its size
_ALL_LENGTHS_AT_ONCE = (6, 7)  # DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY: as many as the page itself claims
_OWN = "Pass the dataset's own file. Nothing was written."


class BoundedParquet:
    """A Parquet file whose rows are unpacked only as far as its size justifies.

    Attributes:
        schema: The Arrow schema.
        rows: Number of rows, by the footer.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        """Read the footer.

        Raises:
            DataError: For a footer that is too large, too many columns, or a duplicate column.
            pyarrow.ArrowException, OSError: For a damaged file.
        """
        _, parquet = pyarrow()
        self._file, self._path = file, path
        size = os.fstat(file.fileno()).st_size
        self._left = _FREE_COST + _COST_PER_BYTE * size
        self._require_small_footer(size)
        self._table = parquet.ParquetFile(
            file, buffer_size=1 << 20, thrift_container_size_limit=_LARGEST_LIST
        )
        self._metadata = self._table.metadata
        if self._metadata.num_columns > _MOST_COLUMNS:
            raise self._refused(f"has {self._metadata.num_columns:,} columns, more than {_MOST_COLUMNS:,}")
        self.schema = self._table.schema_arrow
        self.rows: int = self._metadata.num_rows

    def batches(self, columns: Sequence[str], most: int) -> Iterator[Any]:
        """Yield the rows of some columns, without dictionaries.

        Args:
            most: Maximum rows of a batch; it has fewer if rows may be large.

        Raises:
            DataError: Before it unpacks pages that are too large, and once the rows are too large for the file.
            pyarrow.ArrowException, InvalidPage, OSError: For a damaged file.
        """
        indexes = self._indexes(columns)
        done = 0
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            self._spend(group.num_rows * _ROW_COST)
            largest = sum(self._largest_page(group.column(index)) for index in indexes)
            if largest > _LARGEST_PAGES:
                raise self._refused(
                    f"unpacks to {largest:,} bytes at once",
                    f"The largest pages of all columns may have {_LARGEST_PAGES:,} bytes together.",
                )
            size = max(1, min(most, _HELD // (largest + 1)))
            for packed in self._table.iter_batches(batch_size=size, row_groups=[number], columns=columns):
                batch = _without_dictionaries(packed)
                if size == 1 and batch.nbytes > _HELD:
                    raise too_long(self._path, done)
                self._spend(batch.nbytes)
                yield batch
                done += batch.num_rows

    def _indexes(self, columns: Collection[str]) -> list[int]:
        """Return the indexes of the stored columns behind these columns; a struct's fields are stored separately."""
        wanted, schema = set(columns), self._table.schema
        paths = [schema.column(index).path for index in range(self._metadata.num_columns)]
        return [
            index
            for index, path in enumerate(paths)
            if any(path == name or path.startswith(f"{name}.") for name in wanted)
        ]

    def _largest_page(self, column: Any) -> int:
        start = column.data_page_offset
        if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
            start = column.dictionary_page_offset
        self._spend(column.num_values * _VALUE_COST)
        largest = 0
        for page in read_pages(self._file, start, column.total_compressed_size, column.num_values):
            self._spend(_ROW_COST)
            if page.encoding in _ALL_LENGTHS_AT_ONCE:
                raise self._refused(
                    f"has an encoding that is not supported, in column {column.path_in_schema}",
                    "DELTA_BYTE_ARRAY and DELTA_LENGTH_BYTE_ARRAY can't be read in bounded memory.",
                    "Write it again with pandas: read_parquet(FILE).to_parquet(NEW). Nothing was written.",
                )
            largest = max(largest, page.size)
        return largest

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise self._refused(
                "unpacks to far more than its size",
                f"Its rows have more than {_COST_PER_BYTE} bytes for each byte of the file.",
            )

    def _require_small_footer(self, size: int) -> None:
        self._file.seek(max(0, size - 8))
        length = int.from_bytes(self._file.read(4), "little")
        self._file.seek(0)
        if _LARGEST_FOOTER < length <= size:
            raise self._refused(f"has a footer of {length:,} bytes, more than {_LARGEST_FOOTER:,}")

    def _refused(self, what: str, why: str = "", hint: str = _OWN) -> DataError:
        return DataError(f"The Parquet file {what}", where=str(self._path), why=why, hint=hint)


def too_long(path: Path, row: int) -> DataError:
    """Return the error for a row that is too long."""
    what = f"Row {row} has a text of more than {LONGEST_ROW:,} characters"
    return DataError(what, where=str(path), hint=_OWN)


def _without_dictionaries(batch: Any) -> Any:
    arrow, _ = pyarrow()
    if not any(isinstance(one, arrow.DictionaryArray) for one in batch.columns):
        return batch
    columns = [
        one.dictionary_decode() if isinstance(one, arrow.DictionaryArray) else one for one in batch.columns
    ]
    return arrow.RecordBatch.from_arrays(columns, batch.schema.names)
