"""NaN and infinity in a checkpoint: no command calls such weights good, whatever the dtype and format."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import WeightsError
from npu_rl.weights.checkpoints.checkpoint_findings import check_folder
from npu_rl.weights.checkpoints.output_folder import NOTE
from npu_rl.weights.checkpoints.worker_pool import Workers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from tests.support import clean_env, run_cli
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.inline_workers import audit, cast, convert
from tests.weights.test_cast_input import change_tensors
from tests.weights.test_export import record
from tests.weights.tiny_checkpoint import tiny_fp8

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

__all__ = ["record"]  # a fixture

EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
LAST = "model-00003-of-00003.safetensors"


def with_values(
    tensors: dict[str, Any], name: str, dtype: Any, *values: tuple[tuple[int, int], float]
) -> Any:
    changed = tensors[name].to(dtype)
    for index, value in values:
        changed[index] = value
    return tensors | {name: changed}


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A model with an infinity and two NaN in an expert's matrix, in bfloat16."""
    values = (((5, 3), float("-inf")), ((5, 9), float("nan")), ((7, 0), float("nan")))
    tensors = with_values(tiny.hf_tensors(tiny.QWEN3_MOE), EXPERT, torch.bfloat16, *values)
    return tiny.write_hf(tmp_path / "hf", tiny.QWEN3_MOE, tensors)


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_single_value_is_seen_wherever_it_is(dtype: Any, value: float) -> None:
    """In whole vectors of the processor and in what is left of them."""
    from npu_rl.weights.tensors.npu_rl_tensors.not_finite import all_finite, not_finite

    for size in (1, 7, 64, 131):
        values = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)
        assert all_finite(values)
        for place in range(size):
            changed = values.clone()
            changed[place] = value
            found = not_finite(changed, ((10, 10 + size),))
            assert found is not None
            assert (found.index, found.values, found.nan) == ((10 + place,), 1, int(value != value))
    code = torch.tensor([[0x7E, 0xFF]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert not all_finite(code) and all_finite(code[:, :1])
    assert all_finite(torch.tensor([2**62])) and all_finite(torch.empty(0))


@pytest.mark.parametrize("output", ["torch_dist", "hf"])
def test_a_conversion_is_refused_and_leaves_no_checkpoint(output: Any, damaged: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(WeightsError) as caught:
        convert(damaged, target, OutputLayout(output), workers=Workers(sys.executable, 1))
    error = caught.value
    assert error.what == "A weight is not a finite number"
    assert error.where == f"{shard_of(damaged, EXPERT)}: {EXPERT}[5, 3]"
    assert error.why == "3 of its 256 values are NaN or infinite (2 NaN); this is the first, -inf."
    left = [path.name for path in target.rglob("*")]
    assert NOTE in left and not [name for name in left if ".part" in name]
    assert not {".metadata", "metadata.json", "model.safetensors.index.json"} & set(left)
    (found, *_) = check_folder(target).findings
    assert found.rule == "weights-convert-unfinished"


def test_a_value_that_bfloat16_cant_hold_is_refused(tmp_path: Path) -> None:
    """The largest float32 rounds to infinity."""
    tensors = with_values(tiny.hf_tensors(tiny.QWEN3_MOE), EXPERT, torch.float32, ((1, 2), 3.4e38))
    source = tiny.write_hf(tmp_path / "hf", tiny.QWEN3_MOE, tensors)
    with pytest.raises(WeightsError) as caught:
        convert(source, tmp_path / "out")
    assert "1 of its 256 values are beyond bfloat16 or not finite (0 NaN)" in str(caught.value.why)


def test_an_audit_fails_even_where_both_sides_have_it(damaged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(damaged, tmp_path / "copy")
    env = clean_env(tmp_path)
    words = ["weights", "audit", damaged, copy, "--python", sys.executable]
    done = run_cli(words, env, tmp_path, timeout=120)
    assert done.returncode == 1, done.stderr
    assert f"{EXPERT}[5, 3]: A has -inf ({shard_of(damaged, EXPERT)}); 3 values are NaN" in done.stdout
    assert f"{EXPERT}[5, 3]: B has -inf ({shard_of(copy, EXPERT)}); 3 values are NaN" in done.stdout
    assert "Not finite: " in done.stdout
    report = audit(damaged, copy)
    assert report["result"] == "not finite"
    assert report["not_finite_in_all"] == {"tensors": 2, "values": 6}
    (first, _) = report["not_finite"]
    assert (first["side"], first["index"], first["values"], first["nan"]) == ("a", [5, 3], 3, 2)


def test_a_copy_of_one_rank_is_looked_at_too(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    hf, tensors = deepseek
    legacy = tiny.write_legacy_deepseek(tmp_path / "legacy", tiny.DEEPSEEK, tensors, 2, [4], 1, True)
    path = legacy / "iter_0000001/mp_rank_01/model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    content["model"]["decoder.layers.3.input_layernorm.weight"][2] = float("nan")
    torch.save(content, path)
    report = audit(hf, legacy)
    (found,), (different,) = report["not_finite"], report["differences"]
    assert (found["side"], found["where"], found["index"]) == ("b", str(path), [2])
    assert (report["result"], different["index"], different["b"]["value"]) == ("different", [2], "nan")


def test_a_cast_refuses_what_it_copies(tmp_path: Path) -> None:
    """The embeddings and norms of a checkpoint in FP8 are in BF16."""
    source = tiny_fp8(tmp_path / "in")
    name, shard = "lm_head.weight", "model-00002-of-00003.safetensors"
    content = bytes(2 * 100) + b"\x80\xff" + bytes(2 * 539)  # 0xff80: -infinity
    change_tensors(source, shard, **{name: ("BF16", (40, 16), content)})
    with pytest.raises(WeightsError) as caught:
        cast(source, tmp_path / "out", Workers(sys.executable, 1))
    assert caught.value.where == f"{source / shard}: {name}[6, 4]"
    assert not (tmp_path / "out" / shard).exists()
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
