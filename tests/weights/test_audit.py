"""`weights audit` between formats: tiny models, fused and split by code of the tests' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError, UsageError
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.inline_workers import audit, cast, equal
from tests.weights.tiny_checkpoint import tiny_fp8

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize("config", [tiny.DEEPSEEK, tiny.QWEN, tiny.QWEN3, tiny.QWEN3_MOE])
def test_torch_dist_is_the_model(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = tiny.hf_tensors(config)
    hf = tiny.write_hf(tmp_path / "hf", config, tensors)
    dist = tiny.write_dist(tmp_path / "dist", tiny.dist_tensors(config, tensors))
    values = sum(tensor.numel() for tensor in tensors.values())
    for a, b in ((hf, dist), (dist, hf)):
        report = audit(a, b)
        assert report["result"] == "equal", report
        assert report["counts"] == {"equal": {"tensors": len(tensors), "values": values}}


@pytest.mark.parametrize(
    ("tp", "layers", "ep", "extend"),
    [
        (2, [4], 1, False),
        (4, [1, 2, 1], 2, True),
        (2, [2, 2], 4, False),
    ],
)
def test_a_legacy_checkpoint_is_the_model(
    tp: int, layers: list[int], ep: int, extend: bool, deepseek: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The layout is found from the files; every rank's copy of what is not divided is compared, too."""
    hf, tensors = deepseek
    legacy = tiny.write_legacy_deepseek(tmp_path / "legacy", tiny.DEEPSEEK, tensors, tp, layers, ep, extend)
    report = audit(hf, legacy, extend=extend)
    assert report["result"] == "equal", report
    assert report["compared"]["tensors"] == len(tensors)
    copies = report["counts"].get("copies", {"tensors": 0})["tensors"]
    assert (copies > 0) == (tp > 1 or ep > 1)
    if tp * ep > 1 and tp > 1:
        assert not equal(hf, legacy, extend=not extend)


def test_formats_of_megatron_against_each_other(
    deepseek: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    hf, tensors = deepseek
    dist = tiny.write_dist(tmp_path / "dist", tiny.dist_tensors(tiny.DEEPSEEK, tensors))
    legacy = tiny.write_legacy_deepseek(tmp_path / "legacy", tiny.DEEPSEEK, tensors, 2, [2, 2], 2, True)
    with pytest.raises(NpuRlError, match="--model-config DIR"):
        audit(dist, legacy)
    assert equal(dist, legacy, config=hf)


def test_one_value_is_found(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    hf, tensors = deepseek
    changed = tiny.dist_tensors(tiny.DEEPSEEK, tensors)
    key = "decoder.layers.2.mlp.experts.experts.linear_fc1.weight"
    changed[key][5, 8 + 3, 7] += 1  # 8 rows of the gate come first
    report = audit(hf, tiny.write_dist(tmp_path / "dist", changed))
    (found,) = report["differences"]
    assert (found["tensor"], found["index"], found["different"]) == (
        "model.layers.2.mlp.experts.5.up_proj.weight",
        [3, 7],
        1,
    )
    value = float(tensors[found["tensor"]][3, 7])
    assert (float(found["a"]["value"]), found["b"]["value"]) == (value, repr(float(changed[key][5, 11, 7])))


def test_what_one_side_lacks_is_listed(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    hf, tensors = deepseek
    stored = tiny.dist_tensors(tiny.DEEPSEEK, tensors)
    del stored["decoder.layers.1.self_attention.linear_kv_up_proj.weight"]
    stored["decoder.layers.1.adapter.weight"] = torch.zeros(2)
    report = audit(hf, tiny.write_dist(tmp_path / "dist", stored))
    assert report["result"] != "equal"
    assert report["only_in_a"] == ["model.layers.1.self_attn.kv_b_proj.weight"]
    assert report["unknown_in_b"] == ["decoder.layers.1.adapter.weight"]


def test_dtypes_that_differ(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A wider copy is equal; a narrower one is equal up to its rounding, and said to be."""
    hf, tensors = deepseek
    wide = tiny.write_hf(tmp_path / "wide", tiny.DEEPSEEK, {name: of.float() for name, of in tensors.items()})
    assert audit(hf, wide)["counts"].keys() == {"equal"}
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    narrow = tiny.write_hf(tmp_path / "narrow", tiny.DEEPSEEK, tensors | {bias: tensors[bias].bfloat16()})
    report = audit(hf, narrow)
    assert report["result"] == "equal"
    assert report["counts"]["rounded"] == {"tensors": 1, "values": 8}


def test_a_cast_is_audited_against_fp8(tmp_path: Path) -> None:
    source, target = tiny_fp8(tmp_path / "fp8"), tmp_path / "bf16"
    cast(source, target)
    report = audit(source, target)
    assert report["result"] == "equal", report
    assert report["counts"]["cast"]["tensors"] == 3
    assert report["mtp_only_in_a"]
    file = min(target.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert audit(source, target)["differences_in_all"] == 1


def test_what_cannot_be_read_is_named(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    hf, tensors = deepseek
    with pytest.raises(UsageError, match="the same folder"):
        audit(hf, hf)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NpuRlError, match="The folder has no checkpoint"):
        audit(hf, tmp_path / "empty")
    stored = tiny.dist_tensors(tiny.DEEPSEEK, tensors)
    stored["output_layer.weight"] = stored["output_layer.weight"][:-1].clone()
    with pytest.raises(NpuRlError, match=r"It is \[47, 16\]; by the model's config.json it is \[48, 16\]"):
        audit(hf, tiny.write_dist(tmp_path / "shape", stored))
    dist = tiny.write_dist(tmp_path / "dist", tiny.dist_tensors(tiny.DEEPSEEK, tensors))
    (data,) = dist.glob("*.distcp")
    content = data.read_bytes()
    data.write_bytes(content[:-200])
    with pytest.raises(NpuRlError, match="A file is truncated"):
        audit(hf, dist)
    legacy = tiny.write_legacy_deepseek(tmp_path / "legacy", tiny.DEEPSEEK, tensors, 2, [2, 2], 2, True)
    (legacy / "iter_0000001/mp_rank_01_001_001/model_optim_rng.pt").unlink()
    with pytest.raises(NpuRlError, match=r"mp_rank_01_001_001/model_optim_rng\.pt"):
        audit(hf, legacy)
    (legacy / "iter_0000001/mp_rank_01_001_001").rmdir()
    with pytest.raises(NpuRlError, match="mp_rank_01_001_001 is missing"):
        audit(hf, legacy)


def bits(pattern: int) -> Any:
    return torch.tensor([pattern], dtype=torch.int32).view(torch.float32)


def pairs() -> dict[str, tuple[Any, Any, str]]:
    half, brain, huge = torch.float16, torch.bfloat16, torch.tensor([1e6])
    of_half = torch.tensor([1.001], dtype=half)
    infinite = torch.tensor([float("inf")])
    return {
        "2**24 + 1, which no float32 is": (torch.tensor([2**24 + 1]), torch.tensor([2.0**24]), "different"),
        "1.5 and a whole number": (torch.tensor([1.5]), torch.tensor([1], dtype=torch.int32), "different"),
        "-1 and 255": (
            torch.tensor([-1], dtype=torch.int8),
            torch.tensor([255], dtype=torch.uint8),
            "different",
        ),
        "rounded to infinity": (huge, infinite.to(half), "different"),
        "the largest float32": (torch.tensor([3.4028e38]), infinite.to(brain), "different"),
        "infinity itself": (infinite, infinite.to(half), "equal"),
        "-0.0": (torch.tensor([-0.0]), torch.tensor([0.0], dtype=brain), "different"),
        "payloads of NaN": (bits(0x7FC00001), bits(0x7FC00000), "different"),
        "bfloat16 of float16": (of_half, of_half.to(brain), "rounded"),
        "float16 for bfloat16": (of_half.to(brain), of_half, "different"),
        "float8": (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2), "different"),
        "no values": (torch.empty(0, 5), torch.empty(0, 5, dtype=brain), "equal"),
    }


@pytest.mark.parametrize("name", list(pairs()))
def test_values_of_two_dtypes(name: str) -> None:
    """Nothing is called equal, or rounded, for what a conversion between dtypes hides."""
    from npu_rl.weights.tensors.npu_rl_tensors.audit import compare
    from npu_rl.weights.tensors.npu_rl_tensors.formats.boxes import slices
    from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import TensorView

    a, b, state = pairs()[name]
    views = [
        TensorView("x", tuple(one.shape), one.dtype, "file", lambda box, one=one: one[slices(box)])
        for one in (a, b)
    ]
    found = compare(views[0], views[1], lambda _count: None)
    assert found.state == state
    assert (found.different > 0) == (state == "different")


def change_rank(folder: Path, rank: str, **changes: Any) -> None:
    """Write a rank's file again; None leaves a tensor out."""
    path = folder / "iter_0000001" / rank / "model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    content["model"] |= {key.replace("__", "."): value for key, value in changes.items()}
    content["model"] = {key: value for key, value in content["model"].items() if value is not None}
    torch.save(content, path)


def test_ranks_that_lack_or_have_other_parts(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Both sides lacked the same half of a tensor, and the other half was compared with nothing: "equal"."""
    hf, tensors = deepseek
    for number, (what, changes) in enumerate(
        (
            ("Tensors are missing on some of the ranks", {"output_layer__weight": None}),
            ("Tensors are missing on some of the ranks", {"decoder__final_layernorm__weight": None}),
            ("The parts of a tensor have several dtypes", {"output_layer__weight": torch.zeros(24, 16)}),
            (
                "The parts of a tensor have several dtypes",
                {"decoder__final_layernorm__weight": torch.zeros(16)},
            ),
        )
    ):
        sides = [tmp_path / f"{side}{number}" for side in "ab"]
        for side in sides:
            tiny.write_legacy_deepseek(side, tiny.DEEPSEEK, tensors, 2, [4], 1, True)
            change_rank(side, "mp_rank_01", **changes)
        with pytest.raises(NpuRlError, match=what):
            audit(*sides, config=hf)
