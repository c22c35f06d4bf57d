"""Headers of safetensors files: what is well-formed is found where it lies, everything else is an error with a name."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import SINGLE, HfCheckpoint
from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import TensorEntry, read_header
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

NAMES = st.text(min_size=1).filter(str.isprintable)
SHAPES = st.dictionaries(NAMES, st.lists(st.integers(0, 5), max_size=3), max_size=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("safetensors") / SINGLE


def packed(shapes: dict[str, list[int]], **more: object) -> tuple[bytes, int]:
    """A file of BF16 zeros with these tensors, and the length of what comes before the data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]} | more
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end), 8 + len(text)


@given(SHAPES)
def test_every_tensor_is_found_where_it_lies(path: Path, shapes: dict[str, list[int]]) -> None:
    shapes.pop("__metadata__", None)
    data, start = packed(shapes)
    path.write_bytes(data)
    expected = {}
    for name, shape in shapes.items():
        expected[name] = TensorEntry(name, "BF16", tuple(shape), start, 2 * prod(shape))
        start += 2 * prod(shape)
    assert read_header(path).entries == expected


@given(st.binary(max_size=60) | st.builds(lambda text: len(text).to_bytes(8, "little") + text, st.binary()))
def test_anything_else_is_an_error(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        found = read_header(path)
    except TensorError as error:
        assert error.where == str(path)
        return
    assert isinstance(json.loads(found.raw), dict)
    assert all(entry.start + entry.size <= len(data) for entry in found.entries.values())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"data_offsets": [0, 10_000]}, "a has 10000 bytes, which is not BF16"),
        ({"data_offsets": [4, 0]}, "a has -4 bytes, which is not BF16"),
        ({"data_offsets": [8, 16]}, "a starts at byte"),
        ({"shape": [3]}, r"which is not BF16 of shape \[3\]"),
        ({"dtype": "BF17"}, "unsupported dtype 'BF17'"),
        ({"data_offsets": [True, 8]}, "malformed"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(path: Path, more: dict[str, object], text: str) -> None:
    path.write_bytes(packed({"a": [2, 2]}, **more)[0])
    with pytest.raises(TensorError, match=f"(?s)Invalid safetensors file.*{text}"):
        read_header(path)


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    """It was "truncated, or another": a clone without git-lfs has one in place of each shard."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4302350824\n"
    (tmp_path / SINGLE).write_text(pointer)
    with pytest.raises(TensorError, match="Git LFS pointer") as caught:
        HfCheckpoint(tmp_path)
    assert "git lfs pull" in caught.value.hint
