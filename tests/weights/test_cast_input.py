"""`weights cast` names what is damaged, incomplete or of another format, and overwrites nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, NpuRlError, UsageError, WeightsError
from npu_rl.weights.checkpoints.output_folder import NOTE, OutputFolder
from npu_rl.weights.checkpoints.worker_pool import Workers
from npu_rl.weights.tensors.npu_rl_tensors.cast_plan import cast_rules
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import HfCheckpoint
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from tests.weights.inline_workers import cast, interpreter
from tests.weights.tiny_checkpoint import change_json, f32, read_file, tiny_fp8, write_file

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00003.safetensors"
SECOND = "model-00002-of-00003.safetensors"
WEIGHT = "model.layers.1.self_attn.o_proj.weight"
SCALE = f"{WEIGHT}_scale_inv"


def change_tensors(folder: Path, shard: str, **changes: Any) -> None:
    """Write a shard again; None leaves a tensor out, of the index too."""
    tensors: dict[str, Any] = read_file(folder / shard)
    tensors.update(changes)
    tensors = {name: value for name, value in tensors.items() if value is not None}
    write_file(folder / shard, tensors)
    index = json.loads((folder / INDEX).read_text())
    weight_map = {n: s for n, s in index["weight_map"].items() if s != shard} | dict.fromkeys(tensors, shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def truncate(folder: Path) -> None:
    path = folder / FIRST
    path.write_bytes(path.read_bytes()[:-7])


def swap(folder: Path) -> None:
    (folder / FIRST).rename(folder / "x")
    (folder / SECOND).rename(folder / FIRST)
    (folder / "x").rename(folder / SECOND)


def escape_folder(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace(f'"{FIRST}"', '"../model.safetensors"'))


def set_scale(*tensor: Any) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder, SECOND, **{SCALE: tensor})


# Name -> a change of the folder, what the message says, and a part of `where`.
PLANNED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "truncated": (truncate, "Invalid safetensors file", FIRST),
    "renamed": (lambda f: (f / FIRST).rename(f / "a.safetensors") and None, "1 of 3 shards are missing", INDEX),
    "swapped": (swap, "A shard and the index disagree", FIRST),
    "a shard outside the folder": (escape_folder, "Invalid index of shards", INDEX),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing", "in"),
    "another quantization": (
        lambda f: change_json(f / "config.json", quantization_config={"quant_method": "gptq"}),
        "Unsupported quantization", "config.json",
    ),
    "no scale": (
        lambda f: change_tensors(f, SECOND, **{SCALE: None}), "A tensor in F8_E4M3 has no scales", WEIGHT,
    ),
    "no weight": (lambda f: change_tensors(f, SECOND, **{WEIGHT: None}), "Scales have no tensor", SCALE),
    "scale of another shape": (set_scale("F32", (1, 2), f32([1, 1])), "Scales don't have the dtype", SCALE),
    "weight cast already": (
        lambda f: change_tensors(f, SECOND, **{WEIGHT: ("BF16", (128, 128), bytes(2 * 128 * 128))}),
        "A tensor that has scales is not in FP8", WEIGHT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANNED)
def test_it_is_found_in_the_headers(tmp_path: Path, case: str) -> None:
    change, message, where = PLANNED[case]
    source = tiny_fp8(tmp_path / "in")
    change(source)
    with pytest.raises(TensorError) as caught:
        checkpoint = HfCheckpoint(source)
        cast_rules(checkpoint).check(checkpoint)
    assert message in caught.value.what
    assert where in caught.value.where
    if case == "truncated":
        assert "truncated within model.layers.0" in caught.value.why


@pytest.mark.parametrize("name", ["", "deeper"])
def test_an_output_within_the_input_is_refused(tmp_path: Path, name: str) -> None:
    source = tiny_fp8(tmp_path / "in")
    before = sorted(source.iterdir())
    with pytest.raises(UsageError, match="Input and output folders overlap"):
        cast(source, source / name, Workers("none", 1))
    assert sorted(source.iterdir()) == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    source, target = tiny_fp8(tmp_path / "in"), tmp_path / "out"
    target.mkdir()
    (target / "config.json").write_text("mine")
    with pytest.raises(UsageError, match="The output folder is not empty"):
        OutputFolder(target, "cast", source, "digest")
    assert [(p.name, p.read_text()) for p in target.iterdir()] == [("config.json", "mine")]


def test_another_cast_into_the_folder_is_refused(tmp_path: Path) -> None:
    output = OutputFolder(tmp_path / "out", "cast", tmp_path, "digest")
    with pytest.raises(UsageError, match="Another process writes into the output folder"):
        OutputFolder(tmp_path / "out", "cast", tmp_path, "digest")
    output.close()


def test_a_model_of_the_same_layout_is_another_input(tmp_path: Path) -> None:
    """DeepSeek-V3 and R1 have the same index and the same headers."""
    source = tiny_fp8(tmp_path / "in")
    before = HfCheckpoint(source).digest()
    change_tensors(source, SECOND, **{"lm_head.weight": ("BF16", (40, 16), bytes(2 * 40 * 16))})
    assert HfCheckpoint(source).digest() != before


def test_an_interpreter_without_torch_is_named(tmp_path: Path) -> None:
    source = tiny_fp8(tmp_path / "in")
    code = "import sys; sys.path.insert(0, '$PYTHONPATH'); sys.argv = ['', '1', '1']; "
    code += "import npu_rl_tensors.worker as w; w.main()"
    bare = interpreter(tmp_path, f'exec {sys.executable} -I -S -c "{code}"')
    with pytest.raises(HostError, match="The interpreter has no torch"):
        cast(source, tmp_path / "out", Workers(bare, 1))


@pytest.mark.rehearsal
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_scale_is_found_while_casting(tmp_path: Path, value: float) -> None:
    pytest.importorskip("torch")
    source = tiny_fp8(tmp_path / "in")
    set_scale("F32", (1, 1), f32([value]))(source)
    with pytest.raises(WeightsError) as caught:
        cast(source, tmp_path / "out")
    assert caught.value.what.startswith("Invalid scale")
    assert caught.value.where == f"{source / SECOND}: {SCALE}[0, 0]"
    left = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert left == [FIRST, NOTE]


@pytest.mark.rehearsal
def test_a_weight_that_is_no_number_is_found_while_casting(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = tiny_fp8(tmp_path / "in")
    change_tensors(source, SECOND, **{WEIGHT: ("F8_E4M3", (128, 128), bytes(300) + b"\xff" + bytes(16083))})
    with pytest.raises(NpuRlError) as caught:
        cast(source, tmp_path / "out", Workers(sys.executable, 2))
    assert caught.value.what == "A weight is not a number"
    assert caught.value.where == f"{source / SECOND}: {WEIGHT}[2, 44]"
