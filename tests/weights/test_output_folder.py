"""The note in an output folder, and the files that others have put there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError, UsageError, WeightsError
from npu_rl.weights.checkpoints.audit_weights import AuditOptions, audit_weights
from npu_rl.weights.checkpoints.other_files import OtherFiles
from npu_rl.weights.checkpoints.output_folder import (
    NOTE,
    OutputFolder,
    finished_sizes,
    unfinished_command,
)
from npu_rl.weights.checkpoints.worker_pool import pool_of
from npu_rl.weights.tensors.npu_rl_tensors.part_file import new_file


def opened(folder: Path) -> OutputFolder:
    return OutputFolder(folder, "cast", Path("/in"), "d")


@pytest.mark.parametrize(
    "note",
    [
        "[" * 200_000,
        "[" + "[]," * 12_000_000 + "0]",
        "[]",
        "{}",
        '{"command": "rm"}',
        '{"command": "cast", "files": {"a": 1e999}}',
        '{"command": "cast", "files": []}',
        "nul",
    ],
    ids=range(8),
)
def test_a_note_that_is_none_is_named(tmp_path: Path, note: str) -> None:
    (tmp_path / NOTE).write_text(note)
    with pytest.raises(WeightsError, match="can't be read"):
        opened(tmp_path)
    assert finished_sizes(tmp_path) == {} and unfinished_command(tmp_path) is None


def test_a_note_lasts_until_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    opened(out).close()
    assert unfinished_command(out) == "cast" and not finished_sizes(out)
    (out / NOTE).write_bytes(b"")  # of a command that was killed as soon as it had made it
    again = opened(out)
    assert again.files is None
    (out / "a").write_bytes(b"1234")
    again.finish(["a"])
    again.close()
    assert unfinished_command(out) is None and finished_sizes(out) == {"a": 4}
    last = opened(out)
    last.require_unchanged()
    os.truncate(out / "a", 3)
    with pytest.raises(UsageError, match=r"Missing or of another size: a\."):
        last.require_unchanged()
    last.close()
    for command, digest in (("cast", "e"), ("convert", "d")):
        with pytest.raises(WeightsError, match="belongs to another input"):
            OutputFolder(out, command, Path("/in"), digest)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_note_that_is_no_file_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("mine")
    out.mkdir()
    os.mkfifo(out / NOTE) if kind == "fifo" else (out / NOTE).symlink_to(victim)
    with pytest.raises(NpuRlError):
        opened(out).close()
    assert victim.read_text() == "mine"
    assert unfinished_command(out) is None


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
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("tokenizer.json", "{}")]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with pytest.raises(KeyboardInterrupt), new_file(target) as out:
        out.write(b"half")
        assert not target.exists() and list(tmp_path.iterdir()) == [tmp_path / "a.part"]
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["cast", "convert"])
def test_an_audit_of_an_unfinished_checkpoint_names_the_command(tmp_path: Path, command: str) -> None:
    whole, part = tmp_path / "a", tmp_path / "b"
    for folder in (whole, part):
        folder.mkdir()
    (part / NOTE).write_text(json.dumps({"command": command}))
    with pytest.raises(WeightsError, match=f"`weights {command}` was interrupted") as caught:
        audit_weights(AuditOptions(whole, part, None, True, "npu-rl"), pool_of(sys.executable, 1))
    assert f"npu-rl weights {command}" in str(caught.value.hint)
