"""Reading safetensors files: what is well-formed is found where it lies, everything else is an error with a name."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.runtime.converter import ConversionError
from npu_rl.runtime.converter.weights import INDEX, SINGLE, Entry, Weights, read_header

SHAPES = st.dictionaries(st.text(min_size=1), st.lists(st.integers(0, 5), max_size=3), max_size=4)


def packed(shapes: dict[str, list[int]], **more: object) -> tuple[bytes, int]:
    """A file of BF16 zeros with these tensors, and the length of what comes before the data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * size(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]} | more
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end), 8 + len(text)


def size(shape: list[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


@given(SHAPES)
def test_every_tensor_is_found_where_it_lies(shapes: dict[str, list[int]]) -> None:
    shapes.pop("__metadata__", None)
    data, start = packed(shapes)
    found = read_header(io.BytesIO(data), "f", len(data))
    expected = {}
    for name, shape in shapes.items():
        expected[name] = Entry("f", "BF16", tuple(shape), start, 2 * size(shape))
        start += 2 * size(shape)
    assert found == expected


@given(st.binary(max_size=60) | st.builds(lambda text: len(text).to_bytes(8, "little") + text, st.binary()))
def test_anything_else_is_an_error(data: bytes) -> None:
    try:
        found = read_header(io.BytesIO(data), "f", len(data))
    except ValueError:
        return
    length = int.from_bytes(data[:8], "little")
    assert isinstance(json.loads(data[8 : 8 + length]), dict)
    assert all(entry.start + entry.bytes <= len(data) for entry in found.values())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"data_offsets": [0, 10_000]}, "was cut off"),
        ({"data_offsets": [4, 0]}, "was cut off"),
        ({"shape": [3]}, "which is not BF16 of shape"),
        ({"dtype": 5}, "not well-formed"),
        ({"shape": None}, "not well-formed"),
        ({"data_offsets": [True, 8]}, "not well-formed"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(more: dict[str, object], text: str) -> None:
    data, _ = packed({"a": [2, 2]}, **more)
    with pytest.raises(ValueError, match=text):
        read_header(io.BytesIO(data), "f", len(data))


def test_only_the_files_that_are_asked_for_are_opened(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        (tmp_path / f"{number}.safetensors").write_bytes(packed({name: [2]})[0])
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "0.safetensors", "b": "1.safetensors"}}')
    weights = Weights(tmp_path)
    assert (weights.names, weights.opened) == ({"a", "b"}, frozenset())
    assert weights.entry("b").shape == (2,)
    assert weights.opened == {"1.safetensors"}
    with pytest.raises(ConversionError, match="has no tensor c"):
        weights.entry("c")


def test_a_folder_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=f"neither {INDEX} nor {SINGLE}"):
        Weights(tmp_path)
    index = tmp_path / INDEX
    for text, message in {
        "{": "can't be read",
        "{}": "KeyError",
        '{"weight_map": {"a": "../x.safetensors"}}': "does not map each tensor to a file of this folder",
        '{"weight_map": {"a": "gone.safetensors"}}': r"lacks 1 of the files .*gone\.safetensors",
    }.items():
        index.write_text(text)
        with pytest.raises(ConversionError, match=message):
            Weights(tmp_path)
    (tmp_path / "gone.safetensors").write_bytes(packed({"other": [1]})[0])
    with pytest.raises(ConversionError, match=r"gone\.safetensors lacks a, which"):
        Weights(tmp_path).entry("a")


@pytest.mark.rehearsal
def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    tensors = {
        "one": torch.randn(3, 5).bfloat16(),
        "two": torch.randn(7, dtype=torch.float32),
        "three": torch.randn(2, 2, 2).half(),
    }
    save_file(tensors, tmp_path / SINGLE)
    weights = Weights(tmp_path)
    assert weights.names == set(tensors)
    for name, tensor in tensors.items():
        read = weights.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
        # Megatron-core and torch copy, when they write, what is a part of something larger.
        assert read.untyped_storage().size() == tensor.numel() * tensor.element_size()
    (tmp_path / SINGLE).write_bytes((tmp_path / SINGLE).read_bytes()[:-4])  # it shrinks while it is read
    with pytest.raises(ConversionError, match=f"{SINGLE} ends within"):
        for name in tensors:
            weights.read(name)
    weights.close()
