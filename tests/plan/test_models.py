"""Parameters of dense and MoE models, from config.json: published totals, and transformers' own models on torch's meta
device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import RecipeError
from npu_rl.recipes.recipe.schema_model_and_data import Model
from npu_rl.recipes.sizing.model_config import known_shapes, read_shape, shape_of
from npu_rl.recipes.sizing.weight_sizes import (
    ATTENTION,
    EMBEDDING,
    count_parameters,
    layer,
    rollout_share,
    stage,
    training_share,
)
from tests.plan.helpers import config, loaded, model

# From the models' pages or the index of their safetensors.
PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "moonlight-16b-a3b": 15_960_108_544,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_total(name: str) -> None:
    assert sum(count_parameters(read_shape(config(name))).values()) == PUBLISHED[name]


@pytest.mark.parametrize("name", sorted(known_shapes("published")))
def test_a_size_that_a_recipe_can_name_is_that_of_its_config(name: str) -> None:
    """But for the positions of Qwen3-30B-A3B, whose file here is that of July 2025."""
    positions = known_shapes("published")[name].positions
    assert read_shape(config(name, max_position_embeddings=positions)) == known_shapes("published")[name]
    assert known_shapes("published")[name].kind == config(name)["model_type"]
    assert name in str(Model.model_fields["architecture"].annotation)


CHANGED = [
    ("qwen2.5-0.5b", {}),
    ("qwen2.5-7b", {}),
    ("qwen3-0.6b", {}),
    ("qwen3-8b", {}),
    ("qwen3-8b", {"attention_bias": True}),
    ("qwen3-30b-a3b", {"num_hidden_layers": 3}),
    ("qwen3-30b-a3b", {"mlp_only_layers": [0, 5], "num_hidden_layers": 6}),
    ("qwen3-30b-a3b", {"decoder_sparse_step": 2, "num_hidden_layers": 5}),
    ("qwen1.5-moe-a2.7b", {"num_hidden_layers": 3}),
]


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("name", "changes"), CHANGED, ids=[f"{name} {changes or ''}" for name, changes in CHANGED]
)
def test_transformers_own_model(name: str, changes: dict[str, Any]) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    values = config(name, **changes)
    made = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(made)
    assert all(weight.is_meta for weight in built.parameters())
    shape = read_shape(values)
    assert sum(weight.numel() for weight in built.parameters()) == sum(count_parameters(shape).values())
    for number, one in enumerate(built.model.layers):
        count = sum(weight.numel() for weight in one.parameters())
        assert count == sum(layer(shape, number).values()), number


def test_tied_words_are_twice_there_on_two_stages_only() -> None:
    shape = read_shape(config("qwen3-0.6b"))
    words = shape.vocabulary * shape.hidden
    share = training_share(1, 1, 1)
    one = stage(shape, range(28), share)
    two = stage(shape, range(14), share) + stage(shape, range(14, 28), share)
    assert sum(two.values()) - sum(one.values()) == words


def test_an_engine_with_more_ranks_than_key_value_heads() -> None:
    """Qwen3-30B-A3B over eight ranks: each holds one of the four key-value heads, the words are padded to 64."""
    shape = read_shape(config("qwen3-30b-a3b"))
    mine = layer(shape, 0, rollout_share(8, 1))
    queries, head = 2 * 2048 * 4096 // 8, 2 * 2048 * 128
    assert mine[ATTENTION] == queries + head
    padded = read_shape(config("qwen3-30b-a3b", vocab_size=151_937))
    assert stage(padded, range(48), rollout_share(8, 1))[EMBEDDING] == 152_000 * 2048 // 8


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), -1e300])
def test_a_factor_that_no_model_has(factor: float, tmp_path: Path) -> None:
    """JSON has such numbers in Python; the rules count positions with them."""
    scaled = model(tmp_path, "qwen2.5-0.5b", rope_scaling={"factor": factor})
    with pytest.raises(RecipeError, match="rope_factor is"):
        shape_of(loaded(scaled))
