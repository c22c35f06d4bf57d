"""The recipes of cann-recipes-train: the launch scripts' values, and every key read by the stack's own tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import check_recipe, unpatched_cann
from tests.recipes.source_tables import changed
from tests.support import present

NAME, RANDOM = "deepseek-v3-cann-256die", "deepseek-v3-cann-256die-random-init"


def test_the_documents_layout() -> None:
    recipe = load_recipe(NAME).recipe
    parallel, rollout = recipe.actor.parallel, recipe.rollout
    assert (parallel.tensor, parallel.pipeline, parallel.expert, rollout.tensor_parallel) == (4, 8, 8, 2)
    layers = recipe.overrides["actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"]
    assert isinstance(layers, list) and (len(layers), sum(layers)) == (8, 61)
    assert recipe.cluster.world == 256 == 2 * int(recipe.env["VLLM_DP_SIZE"])
    assert rollout.max_sequences == recipe.data.batch * rollout.responses // 128
    training = present(judge(load_recipe(NAME)).plan).facts.sizes.train
    assert training.expert == 32, "TP4 x EP8: moe_tp_extend_ep"


def test_the_random_one_is_refused_as_a_training() -> None:
    assert judge(load_recipe(RANDOM)).errors == ()
    refused = judge(load_recipe(RANDOM, ["benchmark=false"])).errors
    assert {error.rule for error in refused} >= {"benchmark-only"}


OURS = {"name", "title", "extends", "benchmark", "steps", "model.checkpoint"}
LOGGED = {"model.load_weights", "rollout.ignore_end", "logging.samples", "logging.validate_every"}
R1_ZERO = "deepseek-r1-zero-256die"
DIFFERS = {
    R1_ZERO: {"logging.validate_first"},
    NAME: {
        *("data.train", "data.test", "reward.function", "reward.manager", "env.VLLM_ENABLE_FIX_ROUTE"),
        "overrides.actor_rollout_ref.actor.megatron.fix_router",
    },
}


@pytest.mark.parametrize("name", DIFFERS)
def test_the_random_one_is_a_benchmark_and_else_the_same(name: str) -> None:
    real, random = load_recipe(name).recipe, load_recipe(f"{name}-random-init").recipe
    assert (real.benchmark, random.benchmark) == (False, True)
    assert random.model.load_weights is False and random.rollout.ignore_end is True
    assert changed(name, f"{name}-random-init") == OURS | LOGGED | DIFFERS[name]


@pytest.mark.upstreams
@pytest.mark.parametrize("name", [NAME, RANDOM])
def test_every_key_has_a_reader(upstreams: Path, tmp_path: Path, name: str) -> None:
    found = check_recipe(load_recipe(name), unpatched_cann(upstreams, tmp_path))
    assert found.errors == found.notes == []
