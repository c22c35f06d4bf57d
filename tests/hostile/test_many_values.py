"""Files of other people with millions of values, each of which takes more memory than its text."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from npu_rl.weights.tensors.npu_rl_tensors import safetensors_file
from tests.hostile.limits import measured_cli
from tests.support import clean_env


@pytest.mark.second
def test_a_header_of_as_many_tensors_as_a_checkpoint_may_have_is_read() -> None:
    entry = {"dtype": "BF16", "shape": [1, 2, 3, 4], "data_offsets": [0, 48]}
    header = {f"model.layers.{n}": entry for n in range(safetensors_file.MOST_TENSORS)}
    assert safetensors_file.parse_json(json.dumps(header).encode()) == header


@pytest.mark.rehearsal
def test_a_header_of_a_download(tmp_path: Path) -> None:
    """One of 256 MiB took 6.7 GB and 46 s."""
    header = b"[" + b"[]," * 30_000_000 + b"0]"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    done = measured_cli(
        ["weights", "get", "deepseek-v3", "--to", tmp_path / "model", "--verify"], clean_env(tmp_path)
    )
    assert "its header is damaged" in done.text
