"""The list of hashes: written once, read by sha256sum, and every changed byte found."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from npu_rl.common.errors import UsageError, WeightsError
from npu_rl.weights.checkpoints.hash_list import NAME, verify_hashes, write_hashes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A legacy Megatron checkpoint, as far as names go."""
    (tmp_path / "iter_0000001/mp_rank_00").mkdir(parents=True)
    (tmp_path / "iter_0000001/mp_rank_00/model_optim_rng.pt").write_bytes(bytes(20_000_000))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/note").write_text("of a download")
    return tmp_path


def test_it_is_what_sha256sum_reads(folder: Path) -> None:
    read: list[int] = []
    written = write_hashes(folder, 2, read.append)
    assert (written.files, written.bytes, sum(read)) == (3, 20_000_001, 20_000_001)
    assert (
        f"{hashlib.sha256(b'1').hexdigest()}  latest_checkpointed_iteration.txt\n"
        in (folder / NAME).read_text()
    )
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", "--quiet", NAME], cwd=folder, check=True)
    assert verify_hashes(folder, 2, read.append).ok


def test_every_difference_is_found(folder: Path) -> None:
    write_hashes(folder, 1, lambda _: None)
    with (folder / "iter_0000001/mp_rank_00/model_optim_rng.pt").open("r+b") as file:
        file.seek(19_999_999)
        file.write(b"\1")
    (folder / "empty").unlink()
    (folder / "more").write_text("")
    found = verify_hashes(folder, 2, lambda _: None)
    assert not found.ok
    assert (found.changed, found.missing) == (("iter_0000001/mp_rank_00/model_optim_rng.pt",), ("empty",))
    assert found.extra == ("more",)


def test_a_list_is_not_overwritten(folder: Path) -> None:
    (folder / NAME).write_text("mine")
    with pytest.raises(UsageError, match="The folder already has a list of hashes"):
        write_hashes(folder, 1, lambda _: None)
    assert (folder / NAME).read_text() == "mine"


@pytest.mark.parametrize("line", ["x", "0" * 64 + "  ../a", "0" * 64 + "  /etc/passwd"])
def test_a_damaged_list_is_named(folder: Path, line: str) -> None:
    (folder / NAME).write_text(line + "\n", encoding="latin-1")
    with pytest.raises(WeightsError, match="The list of hashes can't be read"):
        verify_hashes(folder, 1, lambda _: None)
