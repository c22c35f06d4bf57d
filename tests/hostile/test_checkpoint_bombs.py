"""Small files of checkpoints that ask for much: pickles that hash and copy one value again and again, large headers."""

from __future__ import annotations

import json
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from npu_rl.weights.checkpoints.checkpoint_findings import check_folder
from npu_rl.weights.tensors.npu_rl_tensors.formats.restricted_pickle import Ordered, Pickled, read_pickle
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import INDEX, SINGLE
from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import MOST_TENSORS
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from tests.hostile.limits import measured_cli
from tests.support import clean_env, cpu_below

KNOWN: dict[tuple[str, str], Any] = {
    ("m", "Pickled"): Pickled,
    ("m", "set"): set,
    ("collections", "OrderedDict"): Ordered,
}
MANY = 20_000
HEAVY = b"(" + b"K\x01" * 30_000 + b"tq\x00"  # a tuple of 30,000 values, which is named in two bytes
STATE = b"}q\x00(" + b"".join(b"X\x05\x00\x00\x00%05dN" % n for n in range(5000)) + b"uq\x00"
LARGE_INT = b"\x8b" + struct.pack("<I", 250_000) + b"\x01" * 250_000 + b"q\x00"
TEXT = 1_000_000
EQUAL = b"X" + struct.pack("<I", TEXT) + b"x" * TEXT

PICKLES = {
    "keys": HEAVY + b"}(" + b"h\x00K\x01" * MANY + b"u.",
    "one-key-each": HEAVY + b"}" + b"h\x00K\x01s" * MANY + b".",
    "keys-of-many-dicts": HEAVY + b"]" + b"}h\x00K\x01sa" * MANY + b".",
    "members": b"\x80\x04" + HEAVY + b"\x8f(" + b"h\x00" * MANY + b"\x90.",
    "states": STATE + b"cm\nRecord\n" + b"q\x01)\x81h\x00b" + b"h\x01)\x81h\x00b" * MANY + b".",
    "calls": b"](" + b"K\x01" * 30_000 + b"eq\x00cm\nset\nq\x01" + b"h\x01h\x00\x85R0" * MANY + b".",
    "a-list-that-grows-in-a-tuple": b"]q\x00\x85q\x02h\x00("
    + b"K\x01" * 30_000
    + b"ecm\nset\nq\x01"
    + b"h\x01h\x02R0" * MANY
    + b".",
    "large-integers": LARGE_INT + b"}(" + b"h\x00K\x01" * MANY + b"u.",
    "equal-texts": EQUAL + b"q\x000}" + EQUAL + b"\x85K\x01s" + b"h\x00\x85K\x01s" * 6 * MANY + b".",
}


@pytest.mark.parametrize("name", PICKLES)
def test_values_that_are_used_again_and_again(name: str) -> None:
    """Three bytes hashed 32,768 values once more: a file of 1.2 MB took more than a minute."""
    with cpu_below(5), pytest.raises(TensorError, match="too much time or memory"):
        read_pickle(b"\x80\x04" + PICKLES[name], "x", KNOWN)


def test_what_checkpoints_hold_is_read() -> None:
    """Shared values, states and dicts of a size that is in proportion to the file."""
    shape = (1, 2, 3)
    content = {f"{layer}.{name}": (shape, layer) for layer in range(5000) for name in "abc"}
    ordered = OrderedDict((name, [content, shape]) for name in ("x", "y"))
    for protocol in range(2, 6):
        assert read_pickle(pickle.dumps([content, ordered], protocol), "x", KNOWN) == [content, ordered]


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
    for bomb in (HEAVY + b"}(" + b"h\x00K\x01" * 400_000 + b"u.", b"\x8f" * 4_000_000 + b"."):
        (dist / ".metadata").write_bytes(b"\x80\x04" + bomb)
        cost = measured_cli(["weights", "check", dist], clean_env(tmp_path))
        assert cost.code == 1 and "too much time or memory" in cost.text, cost
    large = tmp_path / "large"
    large.mkdir()
    (large / "config.json").write_text("{}")
    (large / SINGLE).write_bytes(header(400_000))
    cost = measured_cli(["weights", "check", large], clean_env(tmp_path))
    assert cost.code == 1 and "names 400,000 tensors" in cost.text, cost
