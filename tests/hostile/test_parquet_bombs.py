"""Parquet files and JSON of a few bytes that unpack to much: refused in bounded memory and time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import DataError
from npu_rl.data.datasets.input_rows import InputRows
from npu_rl.data.datasets.parquet_pages import InvalidPage, read_pages
from npu_rl.data.datasets.trainer_files import read_trainer_file
from tests.hostile.limits import measured_cli
from tests.support import clean_env, cpu_below

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def repeated(text: str, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text])


def packed(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    kept = {"compression": "zstd", "write_statistics": False, "dictionary_pagesize_limit": 1 << 30}
    pq.write_table(pa.table(columns), path, **{**kept, **options})
    return path


def large_cells(path: Path) -> Path:
    texts = {"question": ["a" * (1 << 29)] * 2, "answer": ["#### 1"] * 2}
    return packed(path, texts, use_dictionary=False, data_page_size=1 << 30)


def many_rows(path: Path) -> Path:
    texts = {"question": repeated("x" * 1000, 3_000_000), "answer": repeated("#### 1", 3_000_000)}
    return packed(path, texts)


def many_columns(path: Path) -> Path:
    return packed(path, {**{f"c{i}": ["x"] for i in range(30_000)}, "question": ["q"], "answer": ["#### 1"]})


def spaces(path: Path) -> Path:
    path.write_bytes(b"[" + b" " * 100_000_000)
    return path


def at_the_limit(path: Path) -> Path:
    """Both columns are just below what is refused before it is unpacked, and take the most memory as text."""
    text = "\U0001f600" + "a" * (99 << 20)
    return packed(path, {"question": repeated(text, 100), "answer": repeated(text, 100)})


BOMBS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "large-cells": (large_cells, "bytes at once"),
    "many-rows": (many_rows, "unpacks to far more than its size"),
    "many-columns": (many_columns, "30,002 columns"),
    "spaces": (spaces, "The input ends too early"),
    "at-the-limit": (at_the_limit, "Row 0 has a text of more than"),
}


@pytest.mark.rehearsal
@pytest.mark.parametrize("name", BOMBS)
def test_each_is_refused_within_a_gigabyte_and_ten_seconds(name: str, tmp_path: Path) -> None:
    make, words = BOMBS[name]
    path = make(tmp_path / "bomb")
    args = ["data", "prepare", "gsm8k", "--input", path, "--output", tmp_path / "out"]
    cost = measured_cli(args, clean_env(tmp_path))
    assert cost.code == 1 and words in cost.text, cost
    assert not (tmp_path / "out").exists()


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    return iter(InputRows(path, lambda _done: None))


def test_a_page_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = packed(tmp_path / "a", {"q": repeated("x" * (201 << 20), 1)})
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    with pytest.raises(DataError, match="bytes at once"):
        next(rows_of(path))
    assert pool.bytes_allocated() - before < 1 << 20


def test_rows_that_a_few_bytes_repeat(tmp_path: Path) -> None:
    """Rows without any text cost time, too: 3,000,000 of them were read one by one."""
    count = 70_000
    for number, column in enumerate((repeated("x" * 1000, count), pa.nulls(count, pa.string()))):
        with cpu_below(1), pytest.raises(DataError, match="far more than its size"):
            next(rows_of(packed(tmp_path / str(number), {"q": column})))
    messages = pa.array([[{"role": None, "content": None}] * 1_000_000], CHAT)
    truth = pa.array([{"ground_truth": "1"}])
    chat = {"prompt": messages, "data_source": ["x"], "reward_model": truth}
    with pytest.raises(DataError, match="far more than its size"):
        read_trainer_file(packed(tmp_path / "chat", chat), "prompt", "data_source")


CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def test_what_a_file_of_its_size_may_have_is_read(tmp_path: Path) -> None:
    """Row groups of any size, with and without dictionaries, whichever way pages are written."""
    texts = [f"question {n} " + "x" * (n % 97) for n in range(3000)]
    for number, options in enumerate(
        (
            {"row_group_size": 7, "compression": "snappy"},
            {"use_dictionary": False, "compression": "gzip", "write_statistics": True},
            {"data_page_version": "2.0", "data_page_size": 100, "write_page_checksum": True},
        )
    ):
        path = packed(tmp_path / str(number), {"q": texts, "n": list(range(3000))}, **options)
        assert [(row["q"], row["n"]) for row in rows_of(path)] == list(zip(texts, range(3000), strict=True))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_encodings_that_take_memory_by_their_own_claim(encoding: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "a", {"q": ["x"]}, use_dictionary=False, column_encoding={"q": encoding})
    with pytest.raises(DataError, match="an encoding that is not supported, in column q"):
        next(rows_of(path))


def header(size: bytes, more: bytes = b"") -> bytes:
    """A page header: a data page with a size of `size` and 1 byte stored, 9 values, encoded plainly."""
    return b"\x15\x00\x15" + size + b"\x15\x02" + b"\x2c\x15\x12\x15\x00\x00" + more + b"\x00"


def test_page_headers_that_are_read_in_two_ways() -> None:
    """The decoder keeps 16 bits of a field's number and 32 of a size, and takes the last of two."""
    good = header(b"\x04")
    assert [page.size for page in read_pages(io.BytesIO(good + b"x"), 0, 99, 9)] == [2]
    for bad in (
        header(b"\x04", b"\x05\x84\x80\x08\x80\x80\x80\x80\x04"),  # field 2 again, as 65,538
        header(b"\x04", b"\x05\x04\x80\x80\x80\x80\x04"),
        header(b"\x84\x80\x80\x80\x20"),  # 2**32 + 2
        header(b"\x03"),
        header(b"\xff" * 11),
        b"\x1c" * 100,
        b"\x15",
        b"",
    ):
        with pytest.raises(InvalidPage):
            list(read_pages(io.BytesIO(bad), 0, 99, 9))
