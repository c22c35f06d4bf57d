"""`weights cast` against a second spelling of the arithmetic, and what it does with invalid input."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.weights.checkpoints.output_folder import NOTE
from npu_rl.weights.checkpoints.worker_pool import Workers
from tests.weights.inline_workers import cast
from tests.weights.tiny_checkpoint import naive_cast, read_file, tiny_fp8

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

INDEX = "model.safetensors.index.json"


def all_tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= read_file(path)
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("cast")
    source = tiny_fp8(folder / "in")
    return source, folder / "out", cast(source, folder / "out", Workers(sys.executable, 2))


def test_every_bit_is_that_of_the_naive_cast(done: tuple[Path, Path, dict[str, Any]]) -> None:
    source, target, _ = done
    before, after = all_tensors(source), all_tensors(target)
    cast_names = 0
    for name, (dtype, shape, content) in before.items():
        if name.startswith("model.layers.2.") or name.endswith("_scale_inv"):
            assert name not in after
        elif dtype == "F8_E4M3":
            raw = before[f"{name}_scale_inv"][2]
            scales = struct.unpack(f"<{len(raw) // 4}f", raw)
            assert after.pop(name) == ("BF16", shape, naive_cast(content, (shape[0], shape[1]), scales))
            cast_names += 1
        else:
            assert after.pop(name) == (dtype, shape, content)
    assert (cast_names, after) == (3, {})


def test_index_and_config_are_rewritten_and_other_files_copied(
    done: tuple[Path, Path, dict[str, Any]],
) -> None:
    source, target, report = done
    index = json.loads((target / INDEX).read_text())
    assert set(index["weight_map"]) == set(all_tensors(target))
    assert index["metadata"]["total_size"] == sum(len(t[2]) for t in all_tensors(target).values())
    config = json.loads((target / "config.json").read_text())
    expected = json.loads((source / "config.json").read_text())
    del expected["quantization_config"]
    assert config == {**expected, "num_nextn_predict_layers": 0}
    assert sorted(p.name for p in target.iterdir()) == [
        "config.json",
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        INDEX,
        "modeling_deepseek.py",
        NOTE,
        "tokenizer.json",
    ]
    assert (report["tensors"], report["cast"], report["scales_left_out"]) == (7, 3, 3)
    assert report["copied_tensors"] == {"bfloat16": 3, "float32": 1}
    assert report["mtp_left_out"] == [
        "model.layers.2.eh_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.2.mlp.up_proj.weight_scale_inv",
    ]
    assert report["copied"] == ["modeling_deepseek.py", "tokenizer.json"]
    assert report["not_copied"] == ["figures"]


def test_the_library_reads_it(done: tuple[Path, Path, dict[str, Any]]) -> None:
    safetensors = pytest.importorskip("safetensors")
    _, target, _ = done
    for path in target.glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            assert {n: list(file.get_tensor(n).shape) for n in file.keys()} == {  # noqa: SIM118
                n: list(shape) for n, (_, shape, _) in read_file(path).items()
            }
