"""Pickles that want to run, or to take memory: named and refused, and nothing of them runs."""

from __future__ import annotations

import argparse
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from npu_rl.weights.tensors.npu_rl_tensors.formats.inert_pickle import Inert, read_pickle
from npu_rl.weights.tensors.npu_rl_tensors.memory_limit import memory_limit
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

from npu_rl.weights.tensors.npu_rl_tensors.formats.read_torch_dist import (  # noqa: E402
    read_dist_checkpoint,
)
from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import OpenFiles  # noqa: E402
from npu_rl.weights.tensors.npu_rl_tensors.formats.torch_files import SavedFile, SavedTensor, is_class  # noqa: E402


class Runs:
    """Pickled as a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def text(module: str, name: str, *arguments: str) -> bytes:
    """A pickle of protocol 0 that calls a global with strings."""
    strings = "".join(f"S'{one}'\n" for one in arguments)
    return f"c{module}\n{name}\n({strings}tR.".encode()


def hostile(marker: Path) -> dict[str, bytes]:
    run = f"touch {marker}"
    via_stack = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(run)]) + run.encode() + b"\x85R."
    return {
        "os.system": pickle.dumps(Runs(os.system, run)),
        "builtins.eval": pickle.dumps(Runs(eval, f"open({str(marker)!r}, 'w')")),
        "builtins.getattr": pickle.dumps(Runs(getattr, "x", "join")),
        "torch.load": text("torch", "load", str(marker)),
        "torch.hub.load": text("torch.hub", "load", "a", "b"),
        "torch.utils.data": text("torch.utils.data", "DataLoader", "a"),
        "subprocess.Popen": text("subprocess", "Popen", run),
        "importlib.import_module": text("importlib", "import_module", "antigravity"),
        "os.system by STACK_GLOBAL": via_stack,
        "__builtin__.exec": text("__builtin__", "exec", f"open({str(marker)!r}, 'w')".replace("'", '"')),
        "INST": f"(S'{run}'\nios\nsystem\n.".encode(),
        "OBJ": f"(cos\nsystem\nS'{run}'\no.".encode(),
        "EXT1": b"\x80\x02\x82\x01.",
        "torch.Size.__class__": b"\x80\x04\x8c\x05torch\x8c\x0eSize.__class__\x93.",
    }


NAMES = list(hostile(Path("/x")))


@pytest.mark.parametrize("name", NAMES)
def test_what_wants_to_run(name: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "model_optim_rng.pt"
    (tmp_path / ".metadata").write_bytes(hostile(marker)[name])
    with pytest.raises(TensorError) as raised:
        read_dist_checkpoint(tmp_path, OpenFiles())
    assert ".metadata" in raised.value.where
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", hostile(marker)[name])
    try:
        found = read(path).content
    except TensorError as error:
        assert "doesn't belong in a checkpoint" in error.what
    else:
        assert isinstance(found, Inert) or is_class(found)  # of a name that files of torch have
    assert not marker.exists()


def read(path: Path) -> SavedFile:
    return SavedFile(OpenFiles(), path)


def tensor(path: Path) -> SavedTensor | None:
    found = read(path)
    return found.tensor(found.content)


@pytest.mark.parametrize("protocol", [2, 4])
def test_objects_of_the_run_are_read_as_names(protocol: int, tmp_path: Path) -> None:
    """Arguments and the state of random numbers are in every rank's file; nothing of theirs is imported.

    MindSpeed-LLM's converter writes protocol 4, which `torch.load(weights_only=True)` refuses.
    """
    import numpy as np

    path = tmp_path / "model_optim_rng.pt"
    content = {
        "args": argparse.Namespace(lr=1.0, params_dtype=torch.bfloat16),
        "rng": [np.random.get_state(), torch.arange(3)],
        "model": {"a": torch.ones(2, 3).t(), "b": torch.nn.Parameter(torch.zeros(2))},
    }
    torch.save(content, path, pickle_protocol=protocol)
    found = read(path)
    arguments = found.content["args"]
    assert (
        isinstance(arguments, Inert) and arguments.name == "argparse.Namespace" and arguments.get("lr") == 1.0
    )
    a, b = (found.tensor(value) for value in found.content["model"].values())
    assert a is not None and (a.shape, a.stride) == ((3, 2), (1, 3))
    assert b is not None and b.shape == (2,)
    assert found.tensor(arguments) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a bytearray of 1 TB
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",  # text of 1 TB
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",  # a frame of 1 TB
        b"(" * 100,
        b"",
        b"\x80\x09.",
    ],
)
def test_sizes_beyond_the_file(data: bytes) -> None:
    with pytest.raises(TensorError):
        read_pickle(data, "x")


@pytest.mark.skipif(sys.platform != "linux", reason="no limit elsewhere")
def test_a_pickle_that_takes_all_memory() -> None:
    """A memo index of 2**31 - 1: the unpickler makes room for all below."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(TensorError, match="more than 4 GiB"):
        read_pickle(b"\x80\x04Nr\xff\xff\xff\x7f.", "x")
    with memory_limit(1 << 20), pytest.raises(MemoryError):
        bytearray(5 << 30)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(
    "name",
    ["torch FloatStorage", "torch Size", "collections OrderedDict", "builtins dict", "builtins getattr"],
)
def test_no_file_changes_what_the_next_is_read_with(name: str, slots: bool) -> None:
    """BUILD sets attributes of any object: a file that made FloatStorage int32 changed how the other side was read."""
    module, _, word = name.partition(" ")
    for attribute in ("name", "get", "__new__", "__setstate__", "__init__"):
        state = b"}X" + struct.pack("<I", len(attribute)) + attribute.encode() + b"K\x01s"
        state = b"N" + state + b"\x86" if slots else state
        with pytest.raises(TensorError):
            read_pickle(f"\x80\x02c{module}\n{word}\n".encode() + state + b"b.", "x")
    made = read_pickle(b"\x80\x02ctorch\nx\n)\x81}X\x03\x00\x00\x00getK\x01sb.", "x")
    assert made.get("get") == 1 and made.get("name") is None


def test_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    """The storage is read by offset: one that ends too early must not give what lies behind it."""
    path, changed = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save(torch.arange(7, dtype=torch.float32), path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(changed, "w") as other:
        for entry in archive.infolist():
            content = archive.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert content.count(b"K\x07") >= 1
                content = content.replace(b"K\x07", b"K\x09")
            other.writestr(entry.filename, content)
    found = tensor(path)
    assert found is not None and found.shape == (7,)
    with pytest.raises(TensorError, match="needs more than the 28 bytes"):
        tensor(changed)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(100)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(TensorError, match="the format of torch before"):
        read(path)
    torch.save({"a": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TensorError, match="Invalid file of torch"):
        read(path)


def entries(path: Path, tensor: Any, folder: str) -> dict[str, bytes]:
    torch.save({"a": tensor}, path)
    with zipfile.ZipFile(path) as archive:
        return {
            f"{folder}/{entry.filename.partition('/')[2]}": archive.read(entry)
            for entry in archive.infolist()
        }


def test_an_archive_with_two_of_a_record(tmp_path: Path) -> None:
    """torch reads one of them, and we could read the other and call two checkpoints equal."""
    path = tmp_path / "a.pt"
    ones, zeros = (entries(path, value, "archive") for value in (torch.ones(3), torch.zeros(3)))
    other = entries(path, torch.zeros(3), "other")
    for content in (
        {"other/version": b"3", **ones, **other},  # torch takes the folder of the first entry
        {**ones, "data/0": zeros["archive/data/0"]},
        {"archive/DATA/0": zeros["archive/data/0"], **ones},  # torch looks up names in either case
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        with pytest.raises(TensorError, match="Invalid file of torch"):
            read(path)


@pytest.mark.parametrize("large", ["data.pkl", "byteorder", "the list of entries"])
def test_an_archive_whose_small_parts_are_large(large: str, tmp_path: Path) -> None:
    """They are read whole: a sparse file of 200 GB, which fits on any disk, must not be."""
    size, path = 200 << 30, tmp_path / "a.pt"
    names = {b"a/data.pkl": size // 2 if large == "data.pkl" else 2}
    if large == "byteorder":
        names[b"a/byteorder"] = size // 2
    with path.open("wb") as file:
        file.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, *[0] * 7, 10, 0) + b"a/data.pkl" + b"N.")
        file.truncate(size)
        file.seek(size)
        listed = b""
        for name, length in names.items():
            extra = struct.pack("<HHQQ", 1, 16, length, length)
            ends = 0xFFFFFFFF
            head = (0x02014B50, 45, 45, 0, 0, 0, 0, 0, ends, ends, len(name), len(extra), *[0] * 5)
            listed += struct.pack("<IHHHHHHIIIHHHHHII", *head) + name + extra
        file.write(listed)
        before = size // 2 if large == "the list of entries" else 0
        count, place = len(names), file.tell() - len(listed) - before
        end = struct.pack(
            "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, len(listed) + before, place
        )
        where = file.tell()
        file.write(end + struct.pack("<IIQI", 0x07064B50, 0, where, 1))
        file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    with pytest.raises(TensorError, match="Invalid file of torch"):
        read(path)
