"""The journal in an output folder that another may have written, and the unfinished files beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, NpuRlError, UsageError, WeightsError
from npu_rl.weights.checkpoints.audit_weights import AuditOptions, audit_weights
from npu_rl.weights.checkpoints.choose_workers import pool_of
from npu_rl.weights.checkpoints.other_files import OtherFiles
from npu_rl.weights.checkpoints.output_folder import require_space
from npu_rl.weights.checkpoints.output_journal import (
    CONVERT_NAME,
    NAME,
    OutputJournal,
    finished_sizes,
    is_unfinished,
)
from npu_rl.weights.checkpoints.unfinished_files import remove_unfinished
from npu_rl.weights.tensors.npu_rl_tensors.part_file import SampledSum

FIRST = '{"format": 1, "input": "/in", "digest": "d"}\n'


def crc32(data: bytes) -> int:
    found = SampledSum()
    found.update(data)
    return found.crc32


def opened(folder: Path) -> OutputJournal:
    return OutputJournal(folder, Path("/in"), "d")


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
    line = '{{"shard": "{}", "size": {}, "sampled_crc32": {}}}\n'.format
    sums = line("../x", 8, crc32(b"12345678")), line("a", 4, crc32(b"1234")), line("b", 4, 0)
    (out / NAME).write_text(FIRST + "".join(sums))
    journal = opened(out)
    assert journal.whole({"a", "b"}) == {"a"}
    journal.close()
    assert finished_sizes(out, NAME) == {}  # what `weights check` looks for is in this folder


def test_a_finished_shard_is_proven_by_its_bytes(tmp_path: Path) -> None:
    """The journal had its size alone: zeros in place of its second half were taken for whole."""
    journal = opened(tmp_path)
    for name in ("good", "zeros", "gone", "fifo", "old"):
        (tmp_path / name).write_bytes(b"12345678")
        journal.add(
            {"shard": name, "size": 8} | ({} if name == "old" else {"sampled_crc32": crc32(b"12345678")})
        )
    journal.close()
    (tmp_path / "zeros").write_bytes(b"1234\0\0\0\0")
    (tmp_path / "gone").unlink()
    (tmp_path / "fifo").unlink()
    os.mkfifo(tmp_path / "fifo")
    journal = opened(tmp_path)
    assert journal.whole({"good", "zeros", "gone", "fifo", "old"}) == {"good"}
    assert journal.damaged == ["fifo", "gone", "old", "zeros"]
    assert journal.whole({"good"}) == {"good"} and not journal.damaged
    journal.close()


def test_the_sum_is_of_the_bytes_and_not_of_the_writes() -> None:
    data, at = bytes(range(1, 254)) * 40, 0
    found = SampledSum()
    for length in (0, 3, 4, 1, 247, 1, 1, 300, 7, 8, 9, 255, 256, 257, 2000, 5000, 9999):
        found.update(data[at : at + length])
        at += length
    assert found.crc32 == crc32(data)
    for sector in range(0, len(data), 512):
        changed = data[:sector] + bytes(512) + data[sector + 512 :]
        assert crc32(changed) != crc32(data)


def test_what_is_missing_of_a_disk_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "It needs 0.3 GB, and 0.3 GB are free."."""
    found = list(os.statvfs(tmp_path))
    for blocks, words in (
        (81_000, "needs 0.4 GB, and 0.3 GB"),
        (97_600, "needs 0.400000001 GB, and 0.400000000 GB"),
    ):
        found[1], found[4] = 4096 if blocks == 81_000 else 4000, blocks if blocks == 81_000 else 100_000
        monkeypatch.setattr(os, "statvfs", lambda _path, found=tuple(found): os.statvfs_result(found))
        with pytest.raises(HostError) as raised:
            require_space(tmp_path / "a" / "b", 400_000_001 - (256 << 20))
        assert words in str(raised.value)


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
        "a.safetensors.0123abcd.part.places.json.part", "a.safetensors.0123abcd.part.places.json.89abcdef.part",
        "iter_1/mp_rank_00/model.pt.0123abcd.part", ".a.safetensors.0123456789ab", f".{'n' * 60}.0123456789ab",
    )  # fmt: skip
    others = (
        "mine.part", "b.safetensors.part", "a.safetensors", "a.safetensors.part.txt", "a.safetensors.0123abc.part",
        "iter_1/mp_rank_00/mine.part", "iter_2/mp_rank_00/model.pt.part", ".a.safetensors.0123456789", ".env",
        ".b.safetensors.0123456789ab",
    )  # fmt: skip
    for name in (*ours, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.part").symlink_to(tmp_path / "mine.part")
    remove_unfinished(
        tmp_path, ["a.safetensors", "iter_1/mp_rank_00/model.pt", "not/there", "link", "n" * 99]
    )
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == {*others, "link.part"}


def test_files_beside_the_shards_are_of_this_output_only_once_it_writes_them(tmp_path: Path) -> None:
    """A README.md that a person put into an unfinished output was replaced, and so was their config.json."""
    opened(tmp_path).close()
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    journal = opened(tmp_path)
    for ask in (journal.require_free, journal.complete):
        with pytest.raises(UsageError) as raised:
            ask(["config.json", "README.md", "link"])
        assert "README.md, link: the output needs these names" in str(raised.value)
    journal.complete(["config.json"])
    journal.close()
    (tmp_path / "config.json").write_text("{}")
    journal = opened(tmp_path)  # of a command that was killed after it had begun to write them
    journal.require_free(["config.json"])
    journal.close()
    assert is_unfinished(tmp_path) and finished_sizes(tmp_path, NAME) == {}


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    """tokenizer.json.part led to another folder, whose file got the tokenizer's bytes."""
    source, target, victim = tmp_path / "in", tmp_path / "out", tmp_path / "victim"
    source.mkdir()
    target.mkdir()
    victim.write_text("mine")
    (source / "tokenizer.json").write_text("{}")
    (target / "tokenizer.json.part").symlink_to(victim)
    OtherFiles(("tokenizer.json",), ()).copy(source, target)
    assert victim.read_text() == "mine" and not (target / "tokenizer.json").is_symlink()
    assert (target / "tokenizer.json").read_text() == "{}"
    assert sorted(path.name for path in target.iterdir()) == ["tokenizer.json", "tokenizer.json.part"]


@pytest.mark.parametrize(("journal", "command"), [(NAME, "cast"), (CONVERT_NAME, "convert")])
def test_an_audit_of_an_unfinished_checkpoint_names_the_command(
    tmp_path: Path, journal: str, command: str
) -> None:
    whole, part = tmp_path / "a", tmp_path / "b"
    for folder in (whole, part):
        folder.mkdir()
    (part / journal).write_text("{}\n")
    workers = pool_of(sys.executable, 1)
    with pytest.raises(WeightsError, match=f"`weights {command}` was interrupted") as caught:
        audit_weights(AuditOptions(whole, part, None, True, "npu-rl"), workers)
    assert f"npu-rl weights {command}" in str(caught.value.hint)
