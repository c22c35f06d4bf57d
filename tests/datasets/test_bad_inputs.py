"""Inputs that are damaged or of another shape, and outputs that can't be written: named, and nothing is overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npu_rl.data.datasets.input_rows import input_rows
from npu_rl.data.datasets.trainer_files import TrainerFile, read_trainer_file
from tests.datasets.test_prepare import cli, deepscaler

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

GOOD = json.dumps(deepscaler(50))
ROW = '{"problem": "p", "answer": "1"}'

BAD: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b" \n\n", ("The input is empty",)),
    "truncated": (GOOD[:-30].encode(), ("ends too early", "Unterminated string")),
    "no-comma": (f"[{ROW} {ROW}]".encode(), ("is not valid JSON", "char 33")),
    "strings": (b'["a", "b"]', ("Row 0 is not an object", "a str")),
    "not-utf-8": (GOOD.replace("What is $30", "Wh\xe9t").encode("latin-1"), ("is not UTF-8", "byte 0xe9")),
    "other-fields": (
        b'[{"prompt": "p", "response": "r"}]',
        ("row 0 has no field problem", "prompt, response"),
    ),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", ("pointer of git-lfs",)),
    "deep": (b'[{"problem": ' + b"[" * 100_000, ("nested too deeply",)),
    "broken-parquet": (b"PAR1" + b"\0" * 100 + b"PAR1", ("Parquet file can't be read", "OSError")),
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


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("deepscaler", "--test-fraction", "0"), "is not a share"),
        (("deepscaler", "--template", "r1zero"), "r1-zero"),
        (("deepscaller",), "gsm8k"),
    ],
)
def test_wrong_options(words: tuple[str, ...], word: str, source: Path, tmp_path: Path) -> None:
    done = cli("prepare", *words, "--input", source, "--output", tmp_path / "out")
    assert done.returncode == 2 and word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_arrays([pa.array(v) for v in columns.values()], [*columns]), path)
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return list(input_rows(path, lambda _done: None, ["problem", "answer"]))


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
