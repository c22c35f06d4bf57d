"""The journal in an output folder that another may have written, and the unfinished files beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npu_rl.errors import NpuRlError, WeightsError
from npu_rl.weights.cast_journal import NAME, CastJournal, finished_sizes, is_unfinished
from npu_rl.weights.unfinished_files import remove_unfinished

FIRST = '{"format": 1, "input": "/in", "digest": "d"}\n'


def opened(folder: Path) -> CastJournal:
    return CastJournal(folder, Path("/in"), "d")


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "{}",
        '{"shard": "a"}',
        '{"shard": "a", "size": 1e999}',
        '{"shard": "a", "size": []}',
        "nul",
    ],
)
def test_a_line_that_makes_no_sense_is_told(tmp_path: Path, line: str) -> None:
    (tmp_path / NAME).write_text(f"{FIRST}{line}\n")
    with pytest.raises(WeightsError, match="can't be read"):
        opened(tmp_path)
    assert finished_sizes(tmp_path, NAME) == {}


def test_a_shard_that_is_not_the_outputs_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345678")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_bytes(b"1234")
    (out / NAME).write_text(
        f'{FIRST}{{"shard": "../x", "size": 8}}\n{{"shard": "a", "size": 4}}\n{{"shard": "b", "size": 4}}\n'
    )
    journal = opened(out)
    assert journal.whole({"a", "b"}) == {"a"}
    journal.close()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_journal_that_is_no_file_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text(FIRST)
    out.mkdir()
    os.mkfifo(out / NAME) if kind == "fifo" else (out / NAME).symlink_to(victim)
    with pytest.raises(NpuRlError):
        opened(out).close()
    assert victim.read_text() == FIRST
    assert kind == "link" or not is_unfinished(out)


def test_only_the_outputs_own_unfinished_files_go(tmp_path: Path) -> None:
    ours = (
        "a.safetensors.part", "a.safetensors.0123abcd.part", "a.safetensors.0123abcd.part.places.json",
        "a.safetensors.0123abcd.part.places.json.part", "iter_1/mp_rank_00/model.pt.0123abcd.part",
    )  # fmt: skip
    others = (
        "mine.part", "b.safetensors.part", "a.safetensors", "a.safetensors.part.txt", "a.safetensors.0123abc.part",
        "iter_1/mp_rank_00/mine.part", "iter_2/mp_rank_00/model.pt.part",
    )  # fmt: skip
    for name in (*ours, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.part").symlink_to(tmp_path / "mine.part")
    remove_unfinished(tmp_path, ["a.safetensors", "iter_1/mp_rank_00/model.pt", "not/there", "link"])
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == {*others, "link.part"}
