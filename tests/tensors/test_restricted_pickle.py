"""Pickles that want to run, or to take memory: named and refused, and nothing of them runs."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

from npu_rl.weights.tensors.npu_rl_tensors.formats import fsdp_pickles, read_torch_dist, torch_files  # noqa: E402
from npu_rl.weights.tensors.npu_rl_tensors.formats.restricted_pickle import Ordered, Pickled, read_pickle  # noqa: E402
from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import OpenFiles  # noqa: E402


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
def test_metadata_that_wants_to_run(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / ".metadata").write_bytes(hostile(marker)[name])
    with pytest.raises(TensorError) as raised:
        read_torch_dist.read_dist_checkpoint(tmp_path, OpenFiles())
    assert not marker.exists()
    assert ".metadata" in raised.value.where
    assert "Nothing of the file was run" in raised.value.why


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_file_that_wants_to_run(name: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "model_optim_rng.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", hostile(marker)[name])
    with pytest.raises(TensorError, match="doesn't belong in a checkpoint"):
        read(path)
    assert not marker.exists()


def read(path: Path) -> Any:
    return torch_files.read_saved(OpenFiles(), path)


def test_objects_of_the_run_are_read_as_names(tmp_path: Path) -> None:
    """Arguments and the state of random numbers are in every rank's file; nothing of theirs is imported."""
    import argparse

    import numpy as np

    path = tmp_path / "model_optim_rng.pt"
    arguments = argparse.Namespace(lr=1.0, params_dtype=torch.bfloat16)
    content = {
        "args": arguments,
        "rng": [np.random.get_state(), torch.arange(3)],
        "model": {"a": torch.ones(2, 3).t(), "b": torch.nn.Parameter(torch.zeros(2))},
    }
    torch.save(content, path)
    found = read(path)
    assert repr(found["args"]) == "<argparse.Namespace>"
    assert (found["model"]["a"].shape, found["model"]["a"].stride) == ((3, 2), (1, 3))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr\xff\xff\xff\x7f.",  # a memo index of 2**31 - 1: the unpickler would make room for all below
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a bytearray of 1 TB
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",  # text of 1 TB
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",  # a frame of 1 TB
        b"(" * 100,
        b"",
        b"\x80\x09.",
    ],
)
def test_sizes_beyond_the_file(data: bytes) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(TensorError):
            read_pickle(data, "x", {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


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
    assert read(path).shape == (7,)
    with pytest.raises(TensorError, match="needs more than the 28 bytes"):
        read(changed)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(100)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(TensorError, match="the format of torch before"):
        read(path)
    torch.save({"a": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TensorError, match="Invalid file of torch"):
        read(path)


def known() -> dict[tuple[str, str], Any]:
    return {**torch_files._known(), **read_torch_dist._known(), **fsdp_pickles.fsdp_globals()}


@pytest.mark.parametrize("slots", [False, True])
def test_no_file_changes_what_the_next_is_read_with(slots: bool) -> None:
    """BUILD sets attributes of any object: a file that made FloatStorage int32 changed how the other side was read."""
    names = ("dtype", "of", "function", "get", "__defaults__", "__call__", "__new__", "__setstate__")
    for (module, name), found in known().items():
        before = repr(getattr(found, "__dict__", None)), getattr(found, "__defaults__", None)
        for attribute in names:
            state = b"}X" + struct.pack("<I", len(attribute)) + attribute.encode() + b"K\x01s"
            state = b"N" + state + b"\x86" if slots else state
            data = f"\x80\x02c{module}\n{name}\n".encode("latin-1") + state + b"b."
            with pytest.raises(TensorError):
                read_pickle(data, "x", known())
        assert (repr(getattr(found, "__dict__", None)), getattr(found, "__defaults__", None)) == before


def test_attributes_do_not_hide_methods(tmp_path: Path) -> None:
    """`get` of what stands for Metadata, or of an OrderedDict, is ours whatever the file sets."""
    state = b"}X\x03\x00\x00\x00getctorch\nSize\nsb."
    made = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81" + state
    record = read_pickle(made, "x", known())
    assert isinstance(record, Pickled)
    assert record.get("other") is None
    ordered = read_pickle(b"\x80\x02ccollections\nOrderedDict\n)R" + state, "x", known())
    assert isinstance(ordered, Ordered)
    assert ordered.get("a") is None


def nested(count: int) -> bytes:
    """A tuple that holds one twice that holds one twice ..., with nothing else left on the stack."""
    return b"K\x01\x85" + b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(count))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}" + nested(60) + b"K\x01s.",  # as a key
        b"\x80\x02}(" + nested(60) + b"K\x01u.",
        b"\x80\x02cbuiltins\nset\n]" + nested(60) + b"a\x85R.",
        b"\x80\x02}K\x01\x85" + b"2\x86" * 60 + b"K\x01s.",  # by DUP
        b"\x80\x02}K\x01\x85" + b"q\x00h\x00(0h\x00(1\x86" * 60 + b"K\x01s.",  # over marks
        b"\x80\x02}ctorch\nSize\n" + nested(60) + b"\x85RK\x01s.",
    ],
)
def test_keys_whose_hash_never_ends(data: bytes) -> None:
    with pytest.raises(TensorError, match="doesn't belong in a checkpoint"):
        read_pickle(data, "x", known())


def test_lists_that_have_no_end(tmp_path: Path) -> None:
    """Their `repr` would take all memory: what a message shows of a value of a file is bounded."""
    lists = b"]" + b"".join(
        b"q" + bytes([n]) + b"0](h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(60)
    )
    path = tmp_path / "a.pt"
    for data in (
        b"\x80\x02ctorch\nSize\n" + lists + b"\x85R.",
        b"\x80\x02(X\x07\x00\x00\x00storage" + lists + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ.",
    ):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/data/0", b"1234")
        with pytest.raises(TensorError) as raised:
            read(path)
        assert len(str(raised.value)) < 1000


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
