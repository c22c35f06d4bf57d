"""Inputs that are damaged or of another shape, and outputs that can't be written: named, and nothing is overwritten."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import DataError
from npu_rl.data.datasets.input_rows import InputRows
from npu_rl.data.datasets.trainer_files import read_trainer_file
from tests.datasets.test_prepare import cli, contents, deepscaler, write

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

GOOD = json.dumps(deepscaler(50))
ROW = '{"problem": "p", "answer": "1"}'

BAD: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("The input is empty",)),
    "blank": (b" \n\n", ("The input is empty",)),
    "nothing-in-it": (b"[]", ("No row is left for train.parquet", "0 rows read")),
    "truncated": (GOOD[:-30].encode(), ("ends too early", "Row 49")),
    "truncated-between": (b"[" + ROW.encode() + b",", ("ends too early", "Row 1")),
    "truncated-after": (b"[" + ROW.encode(), ("ends too early",)),
    "truncated-line": (f'{ROW}\n{{"problem": "q'.encode(), ("ends too early", "Row 1")),
    "no-comma": (f"[{ROW} {ROW}]".encode(), ("Row 1 is not valid JSON",)),
    "two-on-a-line": (f"{ROW} {ROW}\n".encode(), ("Row 0 is not valid JSON", "one value per line")),
    "text-behind": (f"[{ROW}] x".encode(), ("more text after the array's end",)),
    "bad-escape": (
        b'[{"problem": "\\q", "answer": "1"}, ' + GOOD[1:].encode(),
        ("Row 0 is not valid JSON", "escape"),
    ),
    "strings": (b'["a", "b"]', ("Row 0 is text or a number, not an object",)),
    "lists": (b'[["a", "b"]]', ("Row 0 is a list, not an object",)),
    "late-null": (f"[{ROW}, null]".encode(), ("Row 1 is null, not an object",)),
    "not-utf-8": (GOOD.replace("What is $30", "Wh\xe9t").encode("latin-1"), ("is not UTF-8", "byte")),
    "utf-16": (GOOD.encode("utf-16"), ("neither a JSON array",)),
    "other-fields": (
        b'[{"prompt": "p", "response": "r"}]',
        ("row 0 has no field problem", "prompt, response"),
    ),
    "gsm8k": (b'{"question": "q", "answer": "#### 1"}\n', ("It looks like gsm8k",)),
    "math": (rb'[{"problem": "p", "solution": "\\boxed{1}"}]', ("It looks like math-lighteval",)),
    "split-by-name": (f'{{"train": [{ROW}]}}'.encode(), ("Its fields: train",)),
    "web-page": (b"<!DOCTYPE html>", ("web page",)),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", ("pointer of git-lfs",)),
    "gzip": (b"\x1f\x8b\x08\x00", ("gzip archive", "gunzip")),
    "binary": (bytes(range(128, 256)), ("neither a JSON array",)),
    "deep": (b'[{"problem": ' + b"[" * 100_000, ("nested too deeply",)),
    "broken-parquet": (b"PAR1" + b"\0" * 100 + b"PAR1", ("Parquet file is damaged",)),
    "cut-parquet": (b"PAR1" + b"\0" * 100, ("Parquet file is damaged",)),
    "one-row": (f"[{ROW}]".encode(), ("No row is left for", "--test-fraction")),
    "no-answers": (b'[{"problem": "p", "answer": NaN}]', ("No row is left", "1 without an answer")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_named_and_nothing_written(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    source = tmp_path / "input"
    source.write_bytes(data)
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "folder/out")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "folder").exists() or not list((tmp_path / "folder").iterdir())


def test_ten_deep_nesting_a_bom_and_other_fields_are_fine(tmp_path: Path) -> None:
    rows = deepscaler(50)
    deep: object = 1
    for _ in range(10):
        deep = {"x": [deep]}
    source = tmp_path / "d.json"
    source.write_bytes(
        b"\xef\xbb\xbf" + json.dumps([{**row, "meta": deep, "": None} for row in rows], indent=2).encode()
    )
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_lone_surrogates_do_not_stop_it(tmp_path: Path) -> None:
    source = tmp_path / "d.json"
    source.write_text('[{"problem": "\\ud800", "answer": "1"},' + GOOD[1:])
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_a_parquet_of_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "d.parquet")
    done = cli("prepare", "deepscaler", "--input", tmp_path / "d.parquet", "--output", tmp_path / "out")
    assert done.returncode == 1 and "Its fields: label, text" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda path: path.mkdir(), "The input is not a file"),
        (lambda path: os.mkfifo(path), "The input is not a file"),
        (lambda path: None, "No such file"),
    ],
)
def test_an_input_that_is_no_file(make: Callable[[Path], None], word: str, tmp_path: Path) -> None:
    make(tmp_path / "input")
    done = cli("prepare", "deepscaler", "--input", tmp_path / "input", "--output", tmp_path / "out")
    assert done.returncode == 1 and word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--valid", "0"), "is not a share"),
        (("--valid", "1.5"), "is not a share"),
        (("--valid", "nan"), "is not a share"),
        (("--seed", str(2**64)), "too large"),
        (("--template", "r1zero"), "Unknown template"),
    ],
)
def test_wrong_options(options: tuple[str, ...], word: str, source: Path, tmp_path: Path) -> None:
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out", *options)
    assert done.returncode == 2 and word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_an_unknown_dataset(tmp_path: Path) -> None:
    done = cli("prepare", "deepscaller", "--input", "x", "--output", tmp_path / "out")
    assert done.returncode == 2 and "deepscaler, gsm8k, math-lighteval" in done.stderr


def test_an_output_that_is_a_file_or_a_dangling_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out")
    assert done.returncode == 2 and "is a file, not a folder" in done.stderr
    assert (tmp_path / "out").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "link")
    assert done.returncode == 2 and "link that leads nowhere" in done.stderr


def test_an_empty_folder_is_used(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert set(contents(tmp_path / "out")) == {"train.parquet", "test.parquet", "prepared.json"}


def test_no_space(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: both fail in `write`."""
    source = write(
        tmp_path / "d.json", [{**row, "solution": os.urandom(800).hex()} for row in deepscaler(3000)]
    )
    folder = tmp_path / "folder"
    prepare = f'data prepare deepscaler --input "{source}" --output "{folder}/out"'
    command = f'ulimit -f 200; exec "{sys.executable}" -m npu_rl {prepare}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "too large for this disk" in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert not list(folder.iterdir())


def test_a_read_only_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    target = Path("/sys/out") if os.geteuid() == 0 else tmp_path / "locked/out"  # root writes anywhere else
    done = cli("prepare", "deepscaler", "--input", source, "--output", target)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr and "bug in npu-rl" not in done.stderr, done.stderr


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_arrays([pa.array(v) for v in columns.values()], [*columns]), path)
    return path


def test_columns_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    """A time out of Python's range ended in an OverflowError, a time zone that nobody has in a KeyError."""
    columns: dict[str, Any] = {
        "problem": [f"q{n}" for n in range(9)],
        "answer": [str(n) for n in range(9)],
        "late": pa.array([2**60] * 9, pa.timestamp("us")),
        "day": pa.array([2**31 - 1] * 9, pa.int32()).cast(pa.date32()),
        "zone": pa.array([1] * 9, pa.timestamp("us", tz="Nowhere/X")),
        "nested": [[{"a": 1}]] * 9,
    }
    rows = list(InputRows(parquet(tmp_path / "a.parquet", columns), lambda _done: None))
    assert [row["problem"] for row in rows] == columns["problem"]
    assert rows[0]["late"] is None
    only = {"problem": [["q"]], "answer": [{"a": 1}]}
    assert list(InputRows(parquet(tmp_path / "b.parquet", only), lambda _done: None)) == [dict.fromkeys(only)]


def test_a_column_twice(tmp_path: Path) -> None:
    column = pa.array(["1"])
    pq.write_table(pa.Table.from_arrays([column] * 3, ["problem", "answer", "answer"]), tmp_path / "a")
    with pytest.raises(DataError, match="has the column answer twice"):
        list(InputRows(tmp_path / "a", lambda _done: None))


def test_a_field_twice(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"problem": "q", "answer": "1", "answer": "2"}\n')
    with pytest.raises(DataError) as raised:
        list(InputRows(tmp_path / "a", lambda _done: None))
    assert "its field 'answer' occurs twice" in str(raised.value)


def test_a_text_that_a_few_bytes_repeat(tmp_path: Path) -> None:
    """A dictionary of one text of 1 MB and 4,000 rows is a small file; a thousand rows at once took 1 GB."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), ["x" * 1_000_000])
    path = parquet(tmp_path / "a", {"problem": text, "answer": ["1"] * 4000})
    assert path.stat().st_size < 3_000_000
    rows = iter(InputRows(path, lambda _done: None))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        for _ in range(40):
            assert len(next(rows)["problem"]) == 1_000_000
        assert tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - before < 200_000_000
    finally:
        tracemalloc.stop()


def trainer_columns(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": [[{"role": "user", "content": "q"}]] * 3,
        "data_source": ["deepscaler"] * 3,
        "reward_model": [{"style": "rule", "ground_truth": "1"}] * 3,
        **changes,
    }


@pytest.mark.parametrize("content", [5, ["a"], [{"type": "text", "text": "a"}]])
def test_messages_whose_content_is_no_text(content: Any, tmp_path: Path) -> None:
    """Joining them ended in a TypeError."""
    columns = trainer_columns(prompt=[[{"role": "user", "content": content}]] * 3)
    found = read_trainer_file(parquet(tmp_path / "a", columns), "prompt", "data_source")
    assert "not a list of messages with role and content" in found.faults[0]


def test_samples_that_json_does_not_have(tmp_path: Path) -> None:
    """The reward's dry run gets them as JSON."""
    truth = [{"ground_truth": datetime.date(2020, 1, 2)}] * 3
    columns = trainer_columns(reward_model=truth, extra_info=[{"at": b"x"}] * 3)
    found = read_trainer_file(parquet(tmp_path / "a", columns), "prompt", "data_source")
    assert json.loads(json.dumps(found.samples))["deepscaler"][0]["ground_truth"] == "2020-01-02"


def test_a_trainer_column_twice_or_out_of_range(tmp_path: Path) -> None:
    columns = trainer_columns()
    arrays = [pa.array(columns[name]) for name in ("prompt", *columns)]
    pq.write_table(pa.Table.from_arrays(arrays, ["prompt", *columns]), tmp_path / "a")
    assert read_trainer_file(tmp_path / "a", "prompt", "data_source").faults == [
        "has the column prompt twice"
    ]
    late = pa.array([{"at": 2**60}] * 3, pa.struct([("at", pa.timestamp("us"))]))
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read_trainer_file(parquet(tmp_path / "b", trainer_columns(extra_info=late)), "prompt", "data_source")
