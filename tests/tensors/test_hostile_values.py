"""Headers, indexes and configurations that nobody would write: named in bounded time, never a traceback."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import read_object
from npu_rl.weights.tensors.npu_rl_tensors.layouts.model_sizes import model_sizes
from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import read_header
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from tests.tensors.megatron_checkpoints import DEEPSEEK


def write(path: Path, header: Any, data: bytes = b"xx", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def one(shape: Any, name: str = "a", stop: Any = 2, dtype: Any = "BF16") -> dict[str, Any]:
    return {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, stop]}}


HEADERS: dict[str, Any] = {
    "2**70 beside a 0": one([0, 2**70], stop=0),
    "a product of a million numbers": b'{"a":{"dtype":"BF16","shape":['
    + b"99999999," * 10**6
    + b'1],"data_offsets":[0,2]}}',
    "a bool": one([True]),
    "an offset of 2**63": one([1], stop=2**63),
    "a lone surrogate": one([1], name="\ud800"),
    "a line break": one([1], name="a\nEqual: all"),
    "a name of 100,000 characters": one([1], name="n" * 100_000),
    "a dtype of 100,000 characters": one([1], dtype="F" * 100_000),
    "nesting": b'{"a":' * 100_000,
    "a key twice": b'{"a": {}, "a": {"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}',
    "a number of 5,000 digits": b'{"a":{"dtype":"BF16","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,2]}}',
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(name: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TensorError) as raised:
        read_header(write(tmp_path / "a.safetensors", HEADERS[name]))
    assert raised.value.what == "Invalid safetensors file"
    assert len(raised.value.why) < 500
    assert raised.value.why.isprintable()
    assert time.monotonic() - began < 20  # the product alone took minutes


def test_what_is_no_file(tmp_path: Path) -> None:
    """A pipe was waited for without end; a sparse file would be read whole."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(TensorError, match="Not a regular file"):
        read_object(tmp_path / "config.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TensorError, match="Invalid large"):
        read_object(tmp_path / "large.json")


ODD = [10**30, -1, "4", float("nan"), None, True]


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize("key", ["num_hidden_layers", "n_routed_experts"])
def test_sizes_of_a_model(key: str, value: Any) -> None:
    with pytest.raises(TensorError, match="Unsupported model"):
        model_sizes({**DEEPSEEK, key: value}, "config.json")
