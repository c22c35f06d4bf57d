"""Files of other people with millions of values, each of which takes more memory than its text."""

from __future__ import annotations

import ast
import json
import struct
from pathlib import Path

import pytest

from npu_rl.bounded import JSON_VALUES, LARGEST_PYTHON, PYTHON_DEPTH, parse_json, read_json
from npu_rl.errors import WeightsError
from npu_rl.patches.hunk_headings import _definitions
from npu_rl.summary.definitions import definitions_in
from npu_rl.tensors.npu_rl_tensors import safetensors_file
from npu_rl.trainer_code.source_index import parse
from npu_rl.weights.cast_journal import NAME, CastJournal
from npu_rl.workspace.file_check import read_stats
from tests.hostile.limits import measured_cli
from tests.support import clean_env, cpu_seconds


@pytest.mark.parametrize("piece", ["[],", "{},", "0,", '{"a":0},'])
def test_json_of_too_many_values(piece: str, tmp_path: Path) -> None:
    """64 MiB of `{},` took 1.7 GB."""
    text = "[" + piece * JSON_VALUES + "0]"
    (tmp_path / "x.json").write_text(text)
    started = cpu_seconds()
    with pytest.raises(ValueError, match="more than 5,000,000 values"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ValueError, match="more than 5,000,000 values"):
        safetensors_file.parse_json(text.encode())
    with pytest.raises(ValueError, match="more than 5,000,000 values"):
        parse_json(text)
    assert cpu_seconds() - started < 5


def test_a_header_of_as_many_tensors_as_a_checkpoint_may_have_is_read() -> None:
    entry = {"dtype": "BF16", "shape": [1, 2, 3, 4], "data_offsets": [0, 48]}
    header = {f"model.layers.{n}": entry for n in range(safetensors_file.MOST_TENSORS)}
    assert safetensors_file.parse_json(json.dumps(header).encode()) == header


@pytest.mark.rehearsal
def test_a_header_of_a_download(tmp_path: Path) -> None:
    """One of 256 MiB took 6.7 GB and 46 s."""
    header = b"[" + b"[]," * 30_000_000 + b"0]"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    done = measured_cli(
        ["weights", "get", "deepseek-v3", "--to", tmp_path / "model", "--verify"], clean_env(tmp_path)
    )
    assert "its header is damaged" in done.text


def test_a_record_of_what_was_proven_that_is_too_large(tmp_path: Path) -> None:
    """256 MiB of `[],` in stat.json cost quick verify 6.9 GB."""
    record = tmp_path / "stat.json"
    text = '{"receipt": "r", "roots": {"code": {}}}'
    record.write_text(text)
    assert read_stats(record, "r") == {"code": {}}
    record.write_text(text + " " * (32 << 20))
    assert read_stats(record, "r") == {}


def test_a_journal_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[" + "[]," * 12_000_000 + "0]\n")
    with pytest.raises(WeightsError, match="larger than"):
        CastJournal(tmp_path, tmp_path, "d")


def test_a_journal_without_a_name(tmp_path: Path) -> None:
    CastJournal(tmp_path, tmp_path, "d").close()
    with (tmp_path / NAME).open("a") as file:
        file.write("{}\n")
    with pytest.raises(WeightsError, match="A line lacks 'shard'"):
        CastJournal(tmp_path, tmp_path, "d")


def test_a_python_file_that_is_too_large_has_no_syntax_tree() -> None:
    """16 MB of `X=(1,1,...)` in the trainer's file cost `recipes check` 9 GB and 47 s."""
    for size, read in ((LARGEST_PYTHON, True), (LARGEST_PYTHON + 1, False)):
        content = b"x = 1\n#".ljust(size, b"#")
        found = [parse(content), definitions_in(content), _definitions(content)]
        assert [value is not None for value in found] == [read] * 3


@pytest.mark.parametrize(
    "source",
    [
        "f'" + "{a}" * (LARGEST_PYTHON // 3 - 2) + "'",  # 141 s for 1 MiB on Python 3.11
        "f'" + "b" * (LARGEST_PYTHON - 20_000) + "{a}" * 5000 + "' b",
        "f'''" + "{a:{b}}\n" * (LARGEST_PYTHON // 8 - 1) + "'''",
        "a" + ".a" * (LARGEST_PYTHON // 2 - 1),  # a segmentation fault on Python 3.10
        "a" + "()" * (LARGEST_PYTHON // 2 - 1),
        "a" + "+a" * (LARGEST_PYTHON // 2 - 1),
        "a" + ".a" * 120,
        "not " * 120 + "a",
        "if a:pass\n" + "elif a:pass\n" * 120,
        "x: '" + "\\x2da" * 5000 + "'",
        "a;" * (LARGEST_PYTHON // 2 - 2) + "a b",
    ],
    ids=lambda source: source[:12],
)
def test_a_python_file_that_costs_more_than_its_size_says(source: str) -> None:
    started = cpu_seconds()
    assert parse(source.encode()) is None or source.startswith("x: ")
    assert cpu_seconds() - started < 8


def test_a_tree_as_deep_as_may_be_is_printed() -> None:
    tree = parse(b"a" + b"().a" * (PYTHON_DEPTH // 2 - 2))
    assert tree is not None
    assert ast.unparse(tree).count(".a") == PYTHON_DEPTH // 2 - 2
