"""Published launch scripts, key by key: each argument is the recipe's, or the table of its sources has the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import CANN_RECIPES
from tests.recipes.source_tables import by_key, same, script_arguments, sources, table
from tests.recipes.test_sources import TABLES
from tests.support import git


class Script(NamedTuple):
    """A script: its repository, commit and path, and the number of the trainer's arguments there."""

    repository: str
    at: str
    arguments: int


R1_ZERO = Script("volcengine+verl", "448c6c358:recipe/r1_ascend/run_deepseekv3_671b_grpo_megatron_npu.sh", 78)
CANN, CANN_SCRIPT = (
    "hicann+cann-recipes-train",
    "deepseek/verl_patches/scripts/internal/train_grpo_deepseekv3_256die",
)
PAI = "7737a32f95cbd59ec01dad3d21d1b18017b775ef:examples/deepseek_v3/run_mcore_deepseek_verl.sh"
VERL_NPU = {
    "verl-npu-grpo-qwen3-235b": ("test_grpo_qwen3_235b_A2", 58),
    "verl-npu-dapo-qwen3-235b": ("test_dapo_qwen3_235b_megatron_A3", 97),
    "verl-npu-dapo-qwen3-30b": ("test_dapo_qwen3_30b_fsdp_A+X_6k", 88),
    "verl-npu-dapo-qwen3-32b": ("test_dapo_qwen3_32b_fsdp2_A3", 77),
    "verl-npu-dapo-qwen25-32b-20k": ("test_dapo_qwen25_32b_fsdp2_A+X_20k", 82),
    "verl-npu-dapo-qwen25-32b-4k": ("test_dapo_qwen25_32b_fsdp2_A+X_4k", 84),
}
SCRIPTS = {
    "deepseek-r1-zero-256die": R1_ZERO,
    "deepseek-r1-zero-256die-published": R1_ZERO,
    "deepseek-v3-cann-256die": Script(CANN, f"{CANN_RECIPES}:{CANN_SCRIPT}_true_weight.sh", 58),
    "deepseek-v3-cann-256die-random-init": Script(CANN, f"{CANN_RECIPES}:{CANN_SCRIPT}_random_init.sh", 52),
    "pai-deepseek-v3-128gpu": Script("alibaba+Pai-Megatron-Patch", PAI, 58),
    **{
        name: Script("Ascend+MindSpeed-RL", f"v2.3.0:tests/verl_examples/configs/{script}.sh", count)
        for name, (script, count) in VERL_NPU.items()
    },
}
_MEGATRON = "actor_rollout_ref.actor.megatron"
# Keys that a recipe's own command has by `render`, or that have a row among the differences.
_BY_RENDER = {
    "algorithm.kl_ctrl.kl_coef",
    "trainer.device",
    "trainer.experiment_name",
    "trainer.total_epochs",
}
_DIST_CHECKPOINTS = {
    f"{_MEGATRON}.use_dist_checkpointing",
    "actor_rollout_ref.ref.megatron.use_dist_checkpointing",
}
_LEFT_OUT = {
    "deepseek-r1-zero-256die": _BY_RENDER
    | _DIST_CHECKPOINTS
    | {
        f"{_MEGATRON}.override_transformer_config.moe_grouped_gemm",
        "custom_reward_function.name",
        "custom_reward_function.path",
    },
    "deepseek-v3-cann-256die": _BY_RENDER
    | _DIST_CHECKPOINTS
    | {"trainer.critic_warmup", "actor_rollout_ref.rollout.ignore_eos"},
    "deepseek-v3-cann-256die-random-init": _BY_RENDER | {"trainer.critic_warmup"},
}
_LEFT_OUT["deepseek-r1-zero-256die-published"] = _LEFT_OUT["deepseek-r1-zero-256die"]


def left_out(name: str) -> set[str]:
    """The script's arguments that a recipe leaves out; mostly by the table that says why."""
    if name in _LEFT_OUT:
        return _LEFT_OUT[name]
    stack = "pai-deepseek-v3-128gpu" if name.startswith("pai-") else "verl-npu-plugin"
    section = re.split(r"the recipes? leaves? out\n", sources(stack), maxsplit=1)[1]
    section = re.split(r"\n## |\| variable or command \|", section, maxsplit=1)[0]
    found = set()
    for key, recipes in re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|.+\|$", section, re.MULTILINE):
        ends = recipes.split(", ")
        if stack == name or ends == ["all"] or any(end in name.removeprefix("verl-npu-") for end in ends):
            found.add(key)
    return found


def origins(name: str) -> dict[str, str]:
    """The source of each value of a recipe, what it extends counted in."""
    found: dict[str, str] = {}
    for file in load_recipe(name).files:
        recipe = file.removeprefix("bundled:").removesuffix(".yaml")
        if recipe in TABLES:
            stack, several, _ = TABLES[recipe]
            found = {key: source for key, _, source, _ in table(stack, recipe if several else "")} | found
    return found


@pytest.mark.upstreams
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_argument_of_the_script_is_there_or_explained(upstreams: Path, name: str) -> None:
    script = SCRIPTS[name]
    text = git("show", script.at, git_dir=upstreams / script.repository / "repo")
    given = by_key(script_arguments(text, WORLD_SIZE="16"))
    assert len(given) == script.arguments
    settings = load_recipe(name).settings
    assert given.keys() - settings.keys() == left_out(name)
    source = origins(name)
    differs = {key for key, text in given.items() if key in settings and not same(text, settings[key].value)}
    unexplained = {
        key
        for key in differs
        if source.get(".".join(map(str, settings[key].path))) not in ("ours", "document")
    }
    own = {"trainer.project_name"} if "deepseek-r1" in name or "cann" in name else set()
    assert unexplained == own | ({"trainer.test_freq"} if name.endswith("cann-256die-random-init") else set())
