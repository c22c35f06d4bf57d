"""Checkpoints of FSDP, written by torch itself over several ranks, and read without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from tests.tensors.fsdp_ranks import KINDS
from tests.tensors.test_inert_pickle import NAMES, hostile

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

from npu_rl.weights.tensors.npu_rl_tensors.formats.boxes import whole  # noqa: E402
from npu_rl.weights.tensors.npu_rl_tensors.formats.fsdp_checkpoint import read_fsdp_checkpoint  # noqa: E402
from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import OpenFiles, TensorViews  # noqa: E402


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fsdp")
    script = Path(__file__).with_name("fsdp_ranks.py")
    done = subprocess.run(
        [sys.executable, script, root], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return root


def read(folder: Path) -> TensorViews:
    return read_fsdp_checkpoint(folder, OpenFiles())


@pytest.mark.parametrize("kind", KINDS)
def test_the_ranks_parts_are_the_tensor(kind: str, checkpoints: Path) -> None:
    """5 rows over 2 and 3 ranks, and 1 row, of which the others have nothing."""
    found = read(checkpoints / kind)
    expected = torch.load(checkpoints / kind / "whole.pt")
    assert found.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        view = found.tensors[name]
        assert (view.shape, view.dtype) == (tuple(tensor.shape), tensor.dtype)
        assert torch.equal(view.read(whole(view.shape)), tensor)
        box = tuple((size // 2, size) for size in view.shape)
        part = tuple(slice(size // 2, size) for size in view.shape)
        assert torch.equal(view.read(box), tensor[part])
        for copy in found.copies.get(name, ()):
            assert torch.equal(copy.read(whole(view.shape)), tensor)
    weights = 1 if kind == "hybrid" else 0
    assert {name: len(of) for name, of in found.copies.items()} == (
        {} if kind == "one_rank" else {"correction": KINDS[kind] - 1}
    ) | ({} if not weights else dict.fromkeys(("0.weight", "0.bias", "1.weight"), weights))


@pytest.fixture
def folder(checkpoints: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoints / "fsdp1", tmp_path / "actor")


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"model_world_size_2_rank_{rank}.pt"


def refused(folder: Path) -> str:
    with pytest.raises(TensorError) as caught:
        read(folder)
    return str(caught.value)


def test_a_missing_rank(folder: Path) -> None:
    rank_file(folder, 1).unlink()
    said = refused(folder)
    assert "The checkpoint is not complete" in said and "model_world_size_2_rank_1.pt" in said
    (folder / "fsdp_config.json").unlink()
    assert "model_world_size_2_rank_1.pt" in refused(folder)


def test_a_file_that_was_cut_off(folder: Path) -> None:
    path = rank_file(folder, 1)
    path.write_bytes(path.read_bytes()[:-200])
    assert f"{path}" in refused(folder)
    path.write_bytes(b"")
    assert f"{path}" in refused(folder)


def test_one_rank_s_file_twice(folder: Path) -> None:
    """The parts overlap, or leave a gap: each says where it lies."""
    shutil.copyfile(rank_file(folder, 0), rank_file(folder, 1))
    assert "Invalid FSDP checkpoint" in refused(folder)


def test_ranks_of_another_checkpoint(folder: Path, checkpoints: Path) -> None:
    other = torch.load(rank_file(folder, 1), weights_only=False)
    plain = {name: value for name, value in other.items() if name == "correction"}
    torch.save(plain, rank_file(folder, 1))
    assert "Only one of it and model_world_size_2_rank_0.pt has 0." in refused(folder)
    shutil.copyfile(checkpoints / "one_rank" / "model_world_size_1_rank_0.pt", rank_file(folder, 1))
    assert "0.weight is a plain tensor, [5, 3] in float32, and a part of [5, 3] in float32" in refused(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_that_wants_to_run(name: str, folder: Path, tmp_path: Path) -> None:
    """getattr names nested classes; what stands for it gets no attribute."""
    marker = tmp_path / "ran"
    with zipfile.ZipFile(rank_file(folder, 1), "w") as archive:
        archive.writestr("archive/data.pkl", hostile(marker)[name])
    assert str(rank_file(folder, 1)) in refused(folder)
    assert not marker.exists()
