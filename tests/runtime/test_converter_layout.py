"""How a conversion is divided: every tensor is exactly one rank's, whatever the sizes; and what is refused."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.runtime.converter import ConversionError, add_arguments, convert_instead, layout_of
from npu_rl.runtime.converter.architecture import Architecture, read_architecture
from npu_rl.runtime.converter.layout import lay_out
from npu_rl.runtime.converter.pieces import names, pieces, states

V3 = Architecture(61, 3, 7168, 128, 129280, 18432, 2048, 256, 1, 1536, 512, 128, 64, 128, False)
TINY = Architecture(4, 1, 32, 4, 96, 48, 24, 8, 1, 24, 16, 8, 8, 16, False)


@given(
    layers=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    dense=st.integers(0, 12),
    expert=st.sampled_from([1, 2, 4, 8]),
    tied=st.booleans(),
    query_rank=st.sampled_from([None, 24]),
)
def test_every_tensor_is_one_ranks(
    layers: list[int], dense: int, expert: int, tied: bool, query_rank: int | None
) -> None:
    total = sum(layers)
    model = replace(TINY, layers=total, dense_layers=min(dense, total), tied=tied, query_rank=query_rank)
    world = len(layers) * expert
    layout = lay_out(model, world, len(layers), expert, layers)
    shares = [pieces(model, layout, rank) for rank in range(world)]
    held = [piece.name for share in shares for piece in share]
    assert sorted(held) == sorted(names(model))
    for rank, share in enumerate(shares):
        own = layout.experts_of(layout.expert_group(rank), model.experts)
        for parts in (piece.name.split(".") for piece in share):
            if parts[:2] == ["model", "layers"]:
                assert int(parts[2]) in layout.layers_of(layout.stage(rank))
            if "experts" in parts:
                assert int(parts[parts.index("experts") + 1]) in own
    extra = [(state.key, state.number) for rank in range(world) for state in states(model, layout, rank)]
    assert len(extra) == len(set(extra))


def test_the_published_sizes() -> None:
    """671,026,404,352 parameters and 58 x 256 biases in 64 shares of 20.97 GB on average; none has a third more."""
    layout = lay_out(V3, 64, 8, 8, [7, 7, 8, 8, 8, 8, 8, 7])
    shares = [sum(piece.bytes for piece in pieces(V3, layout, rank)) for rank in range(64)]
    parameters = 671_026_404_352
    assert sum(shares) == 2 * parameters + 4 * 58 * 256
    assert max(shares) < 4 / 3 * sum(shares) / 64
    for stage in range(8):  # within a stage, what is no expert's is dealt out to all
        of_stage = shares[8 * stage : 8 * stage + 8]
        assert max(of_stage) - min(of_stage) < 129280 * 7168 * 2


def test_without_a_split_the_layers_are_divided_evenly() -> None:
    assert lay_out(V3, 8, 8, 1, None).layers == (8, 8, 8, 8, 8, 7, 7, 7)
    assert lay_out(V3, 64, None, 8, None).layers == (8, 8, 8, 8, 8, 7, 7, 7)
    assert lay_out(V3, 3, None, 1, [20, 21, 20]).layers == (20, 21, 20)


@pytest.mark.parametrize(
    ("world", "pipeline", "expert", "layers", "text"),
    [
        (4, 2, 4, None, "2 pipeline stages x 4 expert groups are 8 ranks, but 4 were started"),
        (6, None, 4, None, "1 pipeline stages x 4 expert groups are 4 ranks, but 6 were started"),
        (3, 1, 3, None, "8 experts can't be divided evenly among 3 groups"),
        (5, 5, 1, None, "5 pipeline stages are more than the model's 4 layers"),
        (
            2,
            2,
            1,
            [1, 2],
            "2 numbers, one for each stage, from 1, with the sum 4; these are 2 with the sum 3",
        ),
        (2, 2, 1, [1, 1, 2], "these are 3 with the sum 4"),
        (2, 2, 1, [4, 0], r"layers per stage \[4, 0\]"),
        (1, 0, 1, None, "counted from 1"),
        (1, None, 0, None, "counted from 1"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(
    world: int, pipeline: int | None, expert: int, layers: list[int] | None, text: str
) -> None:
    with pytest.raises(ConversionError, match=text):
        lay_out(TINY, world, pipeline, expert, layers)


CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 4,
    "first_k_dense_replace": 9,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def test_more_dense_layers_than_layers_are_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = read_architecture(tmp_path)
    assert (model.dense_layers, model.query_rank, model.tied) == (4, None, False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "dequantise them to bfloat16"),
        ({"num_nextn_predict_layers": 1}, "which verl refuses: set it to 0"),
        ({"attention_bias": True}, "`attention_bias` is true"),
        ({"moe_layer_freq": 2}, "`moe_layer_freq` is not 1"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "only .'DeepseekV3ForCausalLM'. is converted here"),
        ({"hidden_size": "32", "v_head_dim": 0}, "`hidden_size` is '32'.*`v_head_dim` is 0"),
    ],
)
def test_a_model_that_cannot_be_converted_is_refused(tmp_path: Path, change: object, text: str) -> None:
    assert isinstance(change, dict)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(ConversionError, match=text):
        read_architecture(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"has no config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConversionError, match="can't be read as JSON"):
        read_architecture(tmp_path)


def test_the_scripts_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    asked = layout_of(
        parser.parse_args(["--pp_size", "8", "--ep_size", "8", "--pp_layers", "7,7,8,8,8,8,8,7"])
    )
    assert asked == {"pp_size": 8, "ep_size": 8, "pp_layers": [7, 7, 8, 8, 8, 8, 8, 7]}
    assert layout_of(parser.parse_args([])) == {}
    with pytest.raises(SystemExit):
        parser.parse_args(["--pp_layers", "7,x"])
    monkeypatch.setenv("NPU_RL_CONVERTER_EXPERT_PARALLEL", "0")
    off = argparse.ArgumentParser()
    add_arguments(off)
    with pytest.raises(SystemExit):
        off.parse_args(["--ep_size", "8"])
    assert layout_of(off.parse_args([])) == {}


def test_other_models_are_left_to_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3MoeForCausalLM"]}')
    assert not convert_instead(str(tmp_path), str(tmp_path / "out"), {})
    with pytest.raises(ConversionError, match=r"--ep_size: only .*'Qwen3MoeForCausalLM'.*goes without"):
        convert_instead(str(tmp_path), str(tmp_path / "out"), {"ep_size": 2})
    monkeypatch.setenv("NPU_RL_CONVERTER_EXPERT_PARALLEL", "0")
    assert not convert_instead(str(tmp_path), str(tmp_path / "out"), {"ep_size": 2})
    assert not (tmp_path / "out").exists()
