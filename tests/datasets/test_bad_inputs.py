"""Inputs that are damaged or of another shape, and outputs that can't be written: named, and nothing is overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import DataError
from npu_rl.data.datasets.input_rows import input_rows
from npu_rl.data.datasets.trainer_files import TrainerFile, read_trainer_file
from tests.datasets.test_prepare import cli, deepscaler, prepare, write

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

GOOD = json.dumps(deepscaler(50))
ROW = '{"problem": "p", "answer": "1"}'

BAD: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b" \n\n", ("The input is empty",)),
    "nothing-in-it": (b"[]", ("No row is left for train.parquet", "0 rows read")),
    "truncated": (GOOD[:-30].encode(), ("ends too early", "Unterminated string")),
    "truncated-after": (b"[" + ROW.encode(), ("ends too early",)),
    "truncated-line": (f'{ROW}\n{{"problem": "q'.encode(), ("ends too early", "input:2")),
    "no-comma": (f"[{ROW} {ROW}]".encode(), ("is not valid JSON", "char 33")),
    "two-on-a-line": (f"{ROW} {ROW}\n".encode(), ("is not valid JSON", "Extra data", "input:1")),
    "text-behind": (f"[{ROW}] x".encode(), ("is not valid JSON", "Extra data")),
    "strings": (b'["a", "b"]', ("Row 0 is not an object", "a str")),
    "late-null": (f"[{ROW}, null]".encode(), ("Row 1 is not an object", "NoneType")),
    "not-utf-8": (GOOD.replace("What is $30", "Wh\xe9t").encode("latin-1"), ("is not UTF-8", "byte 0xe9")),
    "utf-16": (GOOD.encode("utf-16"), ("neither a JSON array",)),
    "other-fields": (
        b'[{"prompt": "p", "response": "r"}]',
        ("row 0 has no field problem", "prompt, response"),
    ),
    "gsm8k": (b'{"question": "q", "answer": "#### 1"}\n', ("It looks like gsm8k",)),
    "math": (rb'[{"problem": "p", "solution": "\\boxed{1}"}]', ("It looks like math-lighteval",)),
    "split-by-name": (f'{{"train": [{ROW}]}}'.encode(), ("Its fields: train",)),
    "web-page": (b"<!DOCTYPE html>", ("begins with b'<!DOCTYPE",)),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", ("pointer of git-lfs",)),
    "binary": (bytes(range(128, 256)), ("neither a JSON array",)),
    "deep": (b'[{"problem": ' + b"[" * 100_000, ("nested too deeply",)),
    "broken-parquet": (b"PAR1" + b"\0" * 100 + b"PAR1", ("Parquet file can't be read", "OSError")),
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


def test_nesting_a_bom_lone_surrogates_and_other_fields_are_fine(tmp_path: Path) -> None:
    rows = [{**row, "meta": [{"x": [{"x": 1}]}], "": None} for row in deepscaler(50)]
    rows[0]["problem"] = "\ud800"
    source = tmp_path / "d.json"
    source.write_bytes(b"\xef\xbb\xbf" + json.dumps(rows, indent=2).encode())
    assert prepare("deepscaler", source, tmp_path / "out")["read"] == {"d.json": 50}


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda path: path.mkdir(), "The path is not a file"),
        (lambda path: os.mkfifo(path), "The path is not a file"),
        (lambda path: None, "No such file"),
    ],
)
def test_an_input_that_is_no_file(make: Callable[[Path], None], word: str, tmp_path: Path) -> None:
    make(tmp_path / "input")
    done = cli("prepare", "deepscaler", "--input", tmp_path / "input", "--output", tmp_path / "out")
    assert done.returncode == 2 and word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("deepscaler", "--test-fraction", "0"), "is not a share"),
        (("deepscaler", "--test-fraction", "nan"), "is not a share"),
        (("deepscaler", "--seed", str(2**64)), "--seed"),
        (("deepscaler", "--template", "r1zero"), "r1-zero"),
        (("deepscaller",), "gsm8k"),
    ],
)
def test_wrong_options(words: tuple[str, ...], word: str, source: Path, tmp_path: Path) -> None:
    done = cli("prepare", *words, "--input", source, "--output", tmp_path / "out")
    assert done.returncode == 2 and word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_or_a_dangling_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, word in (("out", "is a file, not a folder"), ("link", "link that leads nowhere")):
        done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / name)
        assert done.returncode == 2 and word in done.stderr
    assert (tmp_path / "out").read_text() == "mine"


def test_no_space(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: both fail in `write`."""
    source = write(
        tmp_path / "d.json", [{**row, "solution": os.urandom(800).hex()} for row in deepscaler(3000)]
    )
    folder = tmp_path / "folder"
    words = f'data prepare deepscaler --input "{source}" --output "{folder}/out"'
    command = f'ulimit -f 200; exec "{sys.executable}" -m npu_rl {words}'
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


def rows_of(path: Path) -> list[dict[str, Any]]:
    return list(input_rows(path, lambda _done: None, ["problem", "answer"]))


def test_columns_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    """A time out of Python's range ends in an OverflowError."""
    late = pa.array([2**60] * 9, pa.timestamp("us"))
    columns = {"problem": [f"q{n}" for n in range(9)], "answer": [*range(8), None], "late": late}
    rows = rows_of(parquet(tmp_path / "a.parquet", columns))
    assert rows[7] == {"problem": "q7", "answer": "7", "late": None} and rows[8]["answer"] is None
    with pytest.raises(DataError) as raised:
        rows_of(parquet(tmp_path / "b.parquet", {"problem": ["q"], "answer": late[:1]}))
    assert "can't be read" in str(raised.value)


def test_a_column_twice(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["1"])] * 3, ["problem", "answer", "answer"])
    pq.write_table(table, tmp_path / "a")
    with pytest.raises(DataError) as raised:
        rows_of(tmp_path / "a")
    assert "the column answer twice" in str(raised.value)


def trainer_file(path: Path, **changes: Any) -> TrainerFile:
    columns = {
        "prompt": [[{"role": "user", "content": "q"}]] * 3,
        "data_source": ["deepscaler"] * 3,
        "reward_model": [{"style": "rule", "ground_truth": "1"}] * 3,
        **changes,
    }
    return read_trainer_file(parquet(path, columns))


@pytest.mark.parametrize("content", [5, ["a"], [{"type": "text", "text": "a"}]])
def test_messages_whose_content_is_no_text(content: Any, tmp_path: Path) -> None:
    """Joining them ended in a TypeError."""
    (fault,) = trainer_file(tmp_path / "a", prompt=[[{"role": "user", "content": content}]] * 3).faults
    assert "not a list of messages with role and content" in fault


def test_images_are_counted_against_their_placeholders(tmp_path: Path) -> None:
    prompts = [[{"role": "user", "content": f"{'<image>' * count} q"}] for count in (1, 2, 1, 0)]
    one = {"bytes": b"x" * 1000, "path": None}
    more = {"data_source": ["geo"] * 4, "reward_model": [{"ground_truth": "1"}] * 4}
    found = trainer_file(tmp_path / "a", prompt=prompts, images=[[one], [one], [], [one]], **more)
    assert (found.images_differ, found.images_missing, found.rows) == ([1, 3], 1, 4)
    assert trainer_file(tmp_path / "b", prompt=prompts, **more).images_missing == 3
