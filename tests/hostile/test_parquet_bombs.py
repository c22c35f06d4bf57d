"""Parquet files of a few bytes that unpack to much, read in bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import DataError
from npu_rl.data.datasets.input_rows import input_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")


def repeated(text: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text])


def packed(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    kept = {"compression": "zstd", "write_statistics": False, "dictionary_pagesize_limit": 1 << 30}
    pq.write_table(pa.table(columns), path, **{**kept, **options})
    return path


def large_cells(path: Path) -> Path:
    return packed(path, {"q": ["a" * (1 << 29)] * 2}, use_dictionary=False, data_page_size=1 << 30)


def large_dictionary(path: Path) -> Path:
    return packed(path, {"q": repeated("\U0001f600" + "a" * (99 << 20), 100)})


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    return input_rows(path, lambda _done: None, ["q", "n"])


@pytest.mark.second
@pytest.mark.parametrize("make", [large_cells, large_dictionary])
def test_it_is_refused_by_the_limit(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "bomb")
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match="can't be read") as raised:
        next(iter(rows_of(path)))
    assert "not enough memory" in raised.value.why or "more than 1024 MB" in raised.value.why


@pytest.mark.second
def test_a_text_that_many_rows_repeat_is_read(tmp_path: Path) -> None:
    """A dictionary of one text of 1 MB for 4,000 rows: 4 GB, of which 100 MB are held."""
    rows = iter(rows_of(packed(tmp_path / "a", {"q": repeated("x" * 1_000_000, 4000)})))
    assert {len(next(rows)["q"]) for _ in range(150)} == {1_000_000}
