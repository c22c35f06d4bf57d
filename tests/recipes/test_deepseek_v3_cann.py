"""The recipes of cann-recipes-train: the launch scripts' values, and every key read by the stack's own tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import CANN_RECIPES, check_recipe, unpatched_cann
from tests.recipes.source_tables import changed, same
from tests.support import git, present

NAME, RANDOM = "deepseek-v3-cann-256die", "deepseek-v3-cann-256die-random-init"
SCRIPTS = f"{CANN_RECIPES}:deepseek/verl_patches/scripts/internal/train_grpo_deepseekv3_256die_"
# Paths of the script's folder and names of an example, which are the user's; and what the trainer has by default.
THE_USERS = {
    "actor_rollout_ref.model.path",
    "data.train_files",
    "data.val_files",
    "actor_rollout_ref.actor.megatron.dist_checkpointing_path",
    "actor_rollout_ref.ref.megatron.dist_checkpointing_path",
    "trainer.project_name",
}
CLIP = "actor_rollout_ref.actor.optim.clip_grad"  # 10000 at the pin, 1 since 15813c4d79
# Keys of the scripts that a run's own command has by `render`, or that have a row among the differences.
NOT_HERE = {
    "actor_rollout_ref.rollout.ignore_eos",
    "actor_rollout_ref.actor.megatron.use_dist_checkpointing",
    "actor_rollout_ref.ref.megatron.use_dist_checkpointing",
    "algorithm.kl_ctrl.kl_coef",
    "trainer.critic_warmup",
    "trainer.device",
    "trainer.experiment_name",
    "trainer.total_epochs",
}


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


def test_the_random_one_is_a_benchmark_and_else_the_same() -> None:
    real, random = load_recipe(NAME), load_recipe(RANDOM)
    assert (real.recipe.benchmark, random.recipe.benchmark) == (False, True)
    fixed = {"env.VLLM_ENABLE_FIX_ROUTE", "overrides.actor_rollout_ref.actor.megatron.fix_router"}
    assert changed(NAME, RANDOM) == fixed | {
        "name", "title", "extends", "benchmark", "steps", "model.load_weights", "model.checkpoint", "data.train",
        "data.test", "reward.function", "reward.manager", "rollout.ignore_end", "logging.samples",
        "logging.validate_every",
    }  # fmt: skip


def test_the_random_one_is_refused_as_a_training() -> None:
    assert judge(load_recipe(RANDOM)).errors == ()
    refused = judge(load_recipe(RANDOM, ["benchmark=false"])).errors
    assert {error.rule for error in refused} >= {"benchmark-only"}


def script(upstreams: Path, variant: str) -> dict[str, str]:
    """The trainer's keys and values of one of the published scripts."""
    text = git("show", f"{SCRIPTS}{variant}.sh", git_dir=upstreams / "hicann+cann-recipes-train" / "repo")
    return {
        key: value.strip("'\"") for key, value in re.findall(r"^ +([\w.]+)=([^ \\]+)", text, re.MULTILINE)
    }


@pytest.mark.upstreams
class TestUpstreams:
    """Against the scripts and the code it is for."""

    @pytest.mark.parametrize(
        ("variant", "keys", "name", "otherwise"),
        [("true_weight", 58, NAME, {CLIP}), ("random_init", 52, RANDOM, {"trainer.test_freq"})],
    )
    def test_every_value_of_the_script(
        self, upstreams: Path, variant: str, keys: int, name: str, otherwise: set[str]
    ) -> None:
        """What the recipe sets otherwise has a row among the differences, or is the user's."""
        published = script(upstreams, variant)
        assert len(published) == keys
        ours = {key: one.value for key, one in load_recipe(name).settings.items()}
        differs = {key for key, text in published.items() if key in ours and not same(text, ours[key])}
        assert differs <= THE_USERS | otherwise and differs >= otherwise
        assert published.keys() - ours.keys() <= NOT_HERE | THE_USERS

    @pytest.mark.parametrize("name", [NAME, RANDOM])
    def test_every_key_has_a_reader(self, upstreams: Path, tmp_path: Path, name: str) -> None:
        found = check_recipe(load_recipe(name), unpatched_cann(upstreams, tmp_path))
        assert found.errors == found.notes == []
