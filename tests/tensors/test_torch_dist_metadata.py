"""`.metadata` of torch.distributed.checkpoint that doesn't fit its files or itself."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

from npu_rl.weights.tensors.npu_rl_tensors.formats.boxes import whole  # noqa: E402
from npu_rl.weights.tensors.npu_rl_tensors.formats.read_torch_dist import (  # noqa: E402
    read_dist_checkpoint,
    require_whole_files,
)
from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import OpenFiles, TensorViews  # noqa: E402

WRITTEN = Path(__file__).with_name("torch_2_5_1")


def read(folder: Path) -> TensorViews:
    return read_dist_checkpoint(folder, OpenFiles())


def test_what_torch_2_5_1_writes() -> None:
    """By its own metadata.py, `_StorageInfo` and serialization.py of its wheel; `a` in two chunks."""
    require_whole_files(WRITTEN, OpenFiles())
    found = read(WRITTEN)
    assert found.objects == ("c",)
    assert found.tensors["a"].dtype == torch.bfloat16
    for name, count, shape in (("a", 12, (3, 4)), ("b", 5, (5,))):
        values = found.tensors[name].read(whole(shape))
        assert torch.equal(values.float(), torch.arange(count).float().view(shape))


def stored(metadata: Any, key: str = "a") -> Any:
    return metadata.state_dict_metadata[key]


def place(metadata: Any, **changes: Any) -> None:
    index = next(index for index in metadata.storage_data if index.fqn == "a")
    vars(metadata.storage_data[index]).update(changes)


def forget(metadata: Any) -> None:
    del metadata.storage_data[next(index for index in metadata.storage_data if index.fqn == "a")]


BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "a chunk twice": (lambda m: stored(m).chunks.append(stored(m).chunks[0]), "or one twice"),
    "a chunk in no file": (forget, "1 of them are in no file"),
    "a chunk in no list": (lambda m: stored(m).chunks.pop(), "not in the tensor's list"),
    "a chunk beyond the tensor": (lambda m: setattr(stored(m), "size", torch.Size([2, 4])), "12 of 8 values"),
    "a gap": (lambda m: setattr(stored(m).chunks[1], "sizes", torch.Size([1, 3])), "11 of 12 values"),
    "another folder": (lambda m: place(m, relative_path="../x"), "outside the files"),
    "an extension": (lambda m: place(m, transform_descriptors=["zstd"]), "extension of torch"),
    "no metadata": (lambda m: setattr(m, "storage_data", None), "not a metadata file"),
}


def changed(change: Callable[[Any], object], folder: Path) -> Path:
    shutil.copytree(WRITTEN, folder)
    metadata = pickle.loads((WRITTEN / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


@pytest.mark.parametrize("name", BROKEN)
def test_metadata_that_contradicts_itself(name: str, tmp_path: Path) -> None:
    change, said = BROKEN[name]
    with pytest.raises(TensorError, match="Invalid dist checkpoint") as caught:
        read(changed(change, tmp_path / "dist"))
    assert said in caught.value.why


def test_a_file_that_is_not_what_metadata_says(tmp_path: Path) -> None:
    folder = changed(lambda m: setattr(stored(m).properties, "dtype", torch.float16), tmp_path / "a")
    with pytest.raises(TensorError, match="A file and the metadata disagree"):
        read(folder).tensors["a"].read(((0, 3), (0, 4)))
    folder = changed(lambda m: place(m, length=1 << 40), tmp_path / "b")
    with pytest.raises(TensorError, match="places something up to"):
        require_whole_files(folder, OpenFiles())
    folder = changed(lambda m: place(m, length=0), tmp_path / "c")
    with pytest.raises(TensorError, match="Invalid file of torch"):
        read(folder).tensors["a"].read(((0, 3), (0, 4)))
