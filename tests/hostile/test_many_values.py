"""Files of other people with millions of values, each of which takes more memory than its text."""

from __future__ import annotations

import ast
import json
import os
import struct
from pathlib import Path

import pytest

from npu_rl.common.bounded import (
    JSON_VALUES,
    LARGEST_PYTHON,
    PYTHON_COST,
    PYTHON_DEPTH,
    parse_json,
    parse_toml,
    read_json,
    syntax_tree,
)
from npu_rl.common.errors import WeightsError, WorkspaceError
from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.stack.hunks.hunk_headings import definitions_of
from npu_rl.stack.requirements.declared import declared_requirements
from npu_rl.stack.requirements.requirement_file import read_requirement_file
from npu_rl.weights.checkpoints.output_journal import NAME, OutputJournal, finished_sizes
from npu_rl.weights.tensors.npu_rl_tensors import safetensors_file
from npu_rl.workspace.folder.file_check import read_stats
from npu_rl.workspace.summary.definitions import definitions_in
from tests.hostile.limits import measured_cli
from tests.support import clean_env, cpu_below


@pytest.mark.parametrize("piece", ["[],", "{},", "0,", '{"a":0},'])
def test_json_of_too_many_values(piece: str, tmp_path: Path) -> None:
    """64 MiB of `{},` took 1.7 GB."""
    text = "[" + piece * JSON_VALUES + "0]"
    (tmp_path / "x.json").write_text(text)
    with cpu_below(5):
        with pytest.raises(ValueError, match="more than 5,000,000 values"):
            read_json(tmp_path / "x.json")
        with pytest.raises(ValueError, match="more than 5,000,000 values"):
            safetensors_file.parse_json(text.encode())
        with pytest.raises(ValueError, match="more than 5,000,000 values"):
            parse_json(text)


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
        OutputJournal(tmp_path, tmp_path, "d")


def test_a_journal_without_a_name(tmp_path: Path) -> None:
    OutputJournal(tmp_path, tmp_path, "d").close()
    with (tmp_path / NAME).open("a") as file:
        file.write("{}\n")
    with pytest.raises(WeightsError, match="A line lacks 'shard'"):
        OutputJournal(tmp_path, tmp_path, "d")


def test_a_python_file_that_is_too_large_has_no_syntax_tree() -> None:
    """16 MB of `X=(1,1,...)` in the trainer's file cost `recipes check` 9 GB and 47 s."""
    for size, read in ((LARGEST_PYTHON, True), (LARGEST_PYTHON + 1, False)):
        content = b"x = 1\n#".ljust(size, b"#")
        found = [syntax_tree(content), definitions_in(content), definitions_of(content)]
        assert [value is not None for value in found] == [read] * 3


@pytest.mark.parametrize(
    "source",
    [
        "f'" + "{a}" * (LARGEST_PYTHON // 3 - 2) + "'",  # 141 s for 1 MiB on Python 3.11
        "f'" + "b" * (LARGEST_PYTHON - 20_000) + "{a}" * 750 + "' b",
        "f'''" + "{a:{b}}\n" * (LARGEST_PYTHON // 8 - 1) + "'''",
        "a" + ".a" * (LARGEST_PYTHON // 2 - 1),  # a segmentation fault on Python 3.10
        "a" + "()" * (LARGEST_PYTHON // 2 - 1),
        "a" + "+a" * (LARGEST_PYTHON // 2 - 1),
        "a" + ".a" * 120,
        "not " * 120 + "a",
        "if a:pass\n" + "elif a:pass\n" * 120,
        "x: '" + "\\x2da" * 5000 + "'",
        "a;" * (LARGEST_PYTHON // 2 - 2) + "a b",
        "a;" * PYTHON_COST + "a b",
    ],
    ids=lambda source: source[:12],
)
def test_a_python_file_that_costs_more_than_its_size_says(source: str) -> None:
    with cpu_below(8):
        assert syntax_tree(source.encode()) is None or source.startswith("x: ")


@pytest.mark.parametrize(
    "key",
    ["a", '"a"', "'b' ", "a-very-long-name", '"\\""' + ".a", "a          .b", "a" * 101 + ".b"],
)
def test_a_toml_key_of_many_parts(key: str) -> None:
    """200 kB of `a.a.a...` took `lock` 3.3 GB and more than 100 s, in other spellings 40 s and 10 GB."""
    with cpu_below(5):
        with pytest.raises(ValueError, match="a key has more than 33 parts"):
            parse_toml(".".join([key] * 20_000) + " = 1")
        with pytest.raises(ValueError):
            parse_toml((("a" * 100 + ".") * 31 + "!") * 60)
        assert parse_toml(".".join([key] * (16 if "." in key else 32)) + " = 1")
        assert parse_toml('text = """' + "One. Two. Three... a.b " * 1000 + '"""')
        assert parse_toml('dependencies = ["a==1.2.3", ' + '"b>=1.0.0,<2.0.0", ' * 40 + "]")


def test_a_requirements_file_of_blanks_or_many_lines() -> None:
    with cpu_below(10):
        assert read_requirement_file("a==1\n" + " " * 250_000 + "b==2\n").bounds == ("a==1", "b==2")
        assert read_requirement_file("a==1  # why\n#b==1\nc==1#d\n").bounds == ("a==1",)
        long = read_requirement_file("a;python_version>'N'\n" * 12_000)
        assert long.unread[-1] == "line 2001 and what follows: more than 2000 lines"


def test_a_tree_of_many_such_files(tmp_path: Path) -> None:
    """262 files of 520 kB took 27 s and 2.3 GB, 150 files of 16 MiB without content 2.5 GB."""
    dense = SourceIndex(tmp_path)
    for number in range(20):
        (tmp_path / f"dense{number}.py").write_bytes(b"a;" * (PYTHON_COST // 2))
    with pytest.raises(WorkspaceError, match="too much Python"):
        for number in range(20):
            assert dense.tree(f"dense{number}.py") is not None
    for number in range(129):
        (tmp_path / "many").mkdir(exist_ok=True)
        os.truncate(os.open(tmp_path / f"many/{number}.py", os.O_CREAT | os.O_WRONLY), 2 << 20)
    with pytest.raises(WorkspaceError, match="more than 256 MiB"):
        dense.texts("many")


def test_a_tree_as_deep_as_may_be_is_printed() -> None:
    tree = syntax_tree(b"a" + b"().a" * (PYTHON_DEPTH // 2 - 2))
    assert tree is not None
    assert ast.unparse(tree).count(".a") == PYTHON_DEPTH // 2 - 2


def test_the_sum_of_what_a_component_declares() -> None:
    text = b"a==1\n" + b"# a.b\n" * 40_000
    files = {f"{n}.txt": text for n in range(9)}
    files["requirements.txt"] = "".join(f"-r {name}\n" for name in files).encode()
    found = declared_requirements(
        lambda paths: {path: files[path] for path in paths if path in files}, ["."], "npu", None
    )
    assert len(found.files) == 5 and sum("more than 1048576 bytes" in line for line in found.unread) == 5


def test_a_journal_of_millions_of_lines(tmp_path: Path) -> None:
    """`weights check` read 16 million lines of `[]` in 49 s."""
    OutputJournal(tmp_path, tmp_path, "d").close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"[]\n" * 10_000_000)
    with cpu_below(3):
        assert finished_sizes(tmp_path, NAME) == {}
        with pytest.raises(WeightsError, match="more than 200000 lines"):
            OutputJournal(tmp_path, tmp_path, "d")
