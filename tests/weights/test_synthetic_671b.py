"""DeepSeek-V3's whole layout with tiny tensors, from FP8 to `torch_dist`: 61 layers of 256 experts."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from npu_rl.weights.checkpoints.worker_pool import Workers
from tests.weights.inline_workers import audit, convert

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

from npu_rl.weights.tensors.npu_rl_tensors.audit import audit_group  # noqa: E402
from tests.tensors import synthetic_671b  # noqa: E402
from tests.weights import toy_fp8  # noqa: E402

MTP = 788  # of the 46,183: the layer of multi-token prediction, which is left out
LAST = "model.layers.60.mlp.experts.255.down_proj.weight"


def test_every_tensor_is_converted_and_audited_and_a_changed_value_is_found(tmp_path: Path) -> None:
    """46,183 tensors without the scales, 45,808 of them in FP8: 45,395 are converted and compared, 788 are named."""
    fp8, dist = toy_fp8.write(tmp_path / "fp8", synthetic_671b.CONFIG, shards=8), tmp_path / "dist"
    pool = Workers(sys.executable, 2)
    converted = convert(fp8, dist, workers=pool)
    assert converted["input"]["tensors"] == synthetic_671b.TENSORS == 46_183
    assert converted["input"]["fp8_tensors"] == synthetic_671b.FP8 == 45_808
    assert (converted["tensors"], len(converted["mtp_left_out"])) == (46_183 - MTP, MTP)
    audited = audit(fp8, dist, workers=pool)
    assert audited["result"] == "equal", audited["differences"]
    assert audited["compared"]["tensors"] + audited["one_sided_in_all"]["mtp_only_in_a"] == 46_183
    assert {state: of["tensors"] for state, of in audited["counts"].items()} == {"cast": 45_032, "equal": 363}

    change_last_value(dist)
    found = audit_group(
        {
            "of": {"a": str(fp8), "b": str(dist), "config": None, "experts_over_tensor": True},
            "names": [LAST],
        },
        lambda _count: None,
    )
    (difference,) = found["differences"]
    assert (difference["tensor"], difference["index"], difference["different"]) == (LAST, [7, 3], 1)
    assert difference["b"]["where"].endswith("__0_0.distcp") or difference["b"]["where"].endswith(".metadata")


def change_last_value(dist: Path) -> None:
    """One bit of the last value of LAST, found by torch's own reader."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import MetadataIndex

    key = "decoder.layers.60.mlp.experts.experts.linear_fc2.weight"
    place = FileSystemReader(dist).read_metadata().storage_data[MetadataIndex(key, torch.Size([255, 0, 0]))]
    path = dist / place.relative_path
    content = bytearray(path.read_bytes())
    saved = bytes(content[place.offset : place.offset + place.length])
    values = torch.load(io.BytesIO(saved)).view(torch.uint8).numpy().tobytes()
    assert saved.count(values) == 1
    content[place.offset + saved.index(values) + len(values) - 1] ^= 1
    path.write_bytes(content)
