"""The note in an output folder, and the files that others have put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npu_rl.common.errors import UsageError, WeightsError
from npu_rl.weights.checkpoints.other_files import OtherFiles
from npu_rl.weights.checkpoints.output_folder import (
    NOTE,
    OutputFolder,
    finished_sizes,
    unfinished_command,
)
from npu_rl.weights.tensors.npu_rl_tensors.part_file import new_file


def opened(folder: Path) -> OutputFolder:
    return OutputFolder(folder, "cast", Path("/in"), "d")


@pytest.mark.parametrize(
    "note",
    ["[" * 200_000, "{}", '{"command": "rm"}', '{"command": "cast", "files": []}'],
    ids=range(4),
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
