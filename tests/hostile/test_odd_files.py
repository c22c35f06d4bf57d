"""A pipe, a device, a folder or a hole of gigabytes where a file is read: told at once, and not waited for or read."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, LockError, PatchError, SourceError
from npu_rl.data.data_check.mindspeed_rl_files import sequences
from npu_rl.recipes.trainer_code.adaptation_switches import headers_of, known_switches, patched_switches
from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.stack.compose.composed_unit import locked_text
from npu_rl.stack.lock.lock_model import LockedPatch, read_text
from npu_rl.stack.patches.series import read_patchset
from npu_rl.stack.sources.sdist import read_sdist
from npu_rl.stack.store import Store
from npu_rl.training.record.saved_checkpoints.saved_steps import RoleFiles, SavedLayout, fault_of
from tests.hostile.mutation_runs import bounded

LAYOUT = SavedLayout((RoleFiles("actor", "fsdp", ("model",)),), 1, 1)


def hole(path: Path) -> None:
    """3 GB that take no room on the disk."""
    path.write_bytes(b"")
    os.truncate(path, 3 << 30)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD = pytest.mark.parametrize("odd", [os.mkfifo, Path.mkdir, zeros, hole], ids=lambda odd: odd.__name__)


def a_patch_of_a_series(folder: Path) -> Path:
    (folder / "series").write_text("0001-a.patch\n")
    return folder / "0001-a.patch"


def locked_patch(place: Path) -> None:
    patch = LockedPatch("a", "./a.patch", "0" * 64, "", 0, ())
    locked_text(patch, place.parent, Store(place.parent / "store"), None, {})  # type: ignore[arg-type]


def below(name: str) -> Callable[[Path], Path]:
    """The place of a file in a folder that is made."""

    def place(folder: Path) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        return folder / name

    return place


# Where the odd file is put, who reads it, and what that raises.
REFUSED: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object], type[Exception], str]] = {
    "a patch of a series": (
        a_patch_of_a_series, lambda at: read_patchset(at.parent), PatchError, "can't be read|does not exist",
    ),
    "a locked patch": (below("a.patch"), locked_patch, PatchError, "not available"),
    "a lock": (below("m.lock.json"), read_text, LockError, "."),
}  # fmt: skip


@ODD
@pytest.mark.parametrize("what", REFUSED)
def test_an_odd_file_is_refused_at_once(what: str, odd: Callable[[Path], None], tmp_path: Path) -> None:
    place, read, error, says = REFUSED[what]
    at = place(tmp_path)
    odd(at)
    with bounded(), pytest.raises(error, match=says):
        read(at)


@ODD
def test_a_file_of_a_tree(odd: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "npu_rl_runtime").mkdir()
    odd(tmp_path / "npu_rl_runtime" / "used.py")
    odd(tmp_path / "0001-a.patch")
    with bounded():
        assert read_source(tmp_path / "npu_rl_runtime" / "used.py") is None
        assert known_switches(tmp_path) and patched_switches(headers_of(tmp_path)) == {}
        assert SourceIndex(tmp_path).module("npu_rl_runtime.used") is None


@ODD
def test_a_ranks_file(odd: Callable[[Path], None], tmp_path: Path) -> None:
    odd(below("actor/model_world_size_1_rank_0.pt")(tmp_path))
    with bounded():
        assert "rank_0.pt" in fault_of(tmp_path, LAYOUT)


def test_an_archive_with_a_list_of_gigabytes(tmp_path: Path) -> None:
    """zipfile reads as many bytes at once as the archive's end says that its list has."""
    path = tmp_path / "data.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"")
    end = path.read_bytes()[-22:]
    os.truncate(path, 2 << 30)
    with path.open("ab") as file:
        file.write(end[:12] + (2 << 30).to_bytes(4, "little") + (0).to_bytes(4, "little") + b"\0\0")
    with bounded():
        assert "list of entries" in fault_of(tmp_path, SavedLayout((), 1, 1))


@pytest.mark.parametrize("odd", [os.mkfifo, zeros], ids=lambda odd: odd.__name__)
def test_an_sdist(odd: Callable[[Path], None], tmp_path: Path) -> None:
    odd(tmp_path / "a-1.tar.gz")
    with bounded(), pytest.raises((SourceError, OSError)):
        list(read_sdist(tmp_path / "a-1.tar.gz"))


@pytest.mark.parametrize(
    "odd", [None, os.mkfifo, Path.mkdir, zeros], ids=["missing", "a pipe", "a folder", "zeros"]
)
def test_an_index_of_packed_files(odd: Callable[[Path], None] | None, tmp_path: Path) -> None:
    """What `disk_errors` is put around may be missing, or be no file, by then."""
    index = tmp_path / "data_packed_input_ids_document.idx"
    if odd:
        odd(index)
    with bounded(), pytest.raises(HostError, match=f"where: {index}"):
        sequences(index)


@pytest.mark.rehearsal
@ODD
def test_a_file_of_torch_dist(odd: Callable[[Path], None], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from npu_rl.weights.tensors.npu_rl_tensors.formats.read_torch_dist import read_dist_checkpoint
    from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import OpenFiles
    from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

    odd(tmp_path / "a.distcp")
    if odd is not hole:
        with bounded(), pytest.raises(TensorError, match="Not a regular file"):
            OpenFiles().size(tmp_path / "a.distcp")
    (tmp_path / ".metadata").write_bytes(b"")
    (tmp_path / "metadata.json").write_bytes(b"[" * 300_000)
    with bounded(), pytest.raises(TensorError, match="nested too deeply"):
        read_dist_checkpoint(tmp_path, OpenFiles())
