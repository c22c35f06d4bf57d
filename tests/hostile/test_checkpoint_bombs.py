"""Small files of checkpoints that ask for much: a pickle that takes all memory, large headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from npu_rl.weights.checkpoints.checkpoint_findings import check_folder
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import INDEX, SINGLE
from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import MOST_TENSORS
from tests.hostile.limits import measured_cli
from tests.support import clean_env


def header(count: int) -> bytes:
    empty = '{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}'
    text = "{" + ",".join(f'"model.layers.{n}.w":{empty}' for n in range(count)) + "}"
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.rehearsal
def test_a_header_and_an_index_of_too_many_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / SINGLE).write_bytes(header(MOST_TENSORS + 1))
    [found] = check_folder(tmp_path).findings
    assert "names 300,001 tensors, more than 300,000" in found.message, found
    names = {f"model.{n}": SINGLE for n in range(MOST_TENSORS + 1)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    [found] = check_folder(tmp_path).findings
    assert "names 300,001 tensors, more than 300,000" in found.message, found


@pytest.mark.rehearsal
def test_commands_end_in_time(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (dist / ".metadata").write_bytes(b"\x80\x04Nr\xff\xff\xff\x7f.")  # room for 2**31 values
    cost = measured_cli(["weights", "check", dist], clean_env(tmp_path))
    assert cost.code == 1 and "more than 4 GiB" in cost.text, cost
    large = tmp_path / "large"
    large.mkdir()
    (large / "config.json").write_text("{}")
    (large / SINGLE).write_bytes(header(400_000))
    cost = measured_cli(["weights", "check", large], clean_env(tmp_path))
    assert cost.code == 1 and "names 400,000 tensors" in cost.text, cost
