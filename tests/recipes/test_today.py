"""The recipes for `today` and `newest`: every value has a source, and what is not the script's is named."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from npu_rl.common.bundled import bundled_recipes
from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import argument
from npu_rl.recipes.recipe.trainer_settings import engine_setting, flatten_mappings, list_settings
from npu_rl.training.run.hydra_compose import compose
from tests.patchsets.flagship_tree import tree
from tests.recipes.source_tables import script_arguments, sources
from tests.recipes.test_published_scripts import Script
from tests.support import git

COMPONENTS = ("verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed", "mbridge")
SOURCES = "today"
CI = "tests/special_npu/nightly_ci_ascend"
VERL, RECIPE_OF_ASCEND = "verl-project+verl", "psyloy+verl-ascend-recipe"


SCRIPTS = {
    "today-gspo-qwen3-30b": Script(VERL, f"7aed6b230776:{CI}/run_gspo_qwen3_30b_megatron_npu.sh", 67),
    "newest-gspo-qwen3-30b": Script(VERL, f"88512193628b:{CI}/run_gspo_qwen3_30b_megatron_npu.sh", 69),
    "today-grpo-qwen3-30b": Script(VERL, f"7aed6b230776:{CI}/run_grpo_qwen3_30b_megatron_sglang_npu.sh", 94),
    "today-grpo-moonlight-16b": Script(
        VERL, f"7aed6b230776:{CI}/run_dapo_moonlight-16b_megatron_npu.sh", 102
    ),
    "today-grpo-qwen3-235b": Script(
        VERL, "7aed6b230776:examples/grpo_trainer/run_qwen3_235b_a22b_megatron.sh", 69
    ),
    "today-dapo-deepseek-v3": Script(
        RECIPE_OF_ASCEND,
        "1dd4d0ebe5d7:dapo/DeepSeek-V3/scripts/run_dapo_deepseekv3_671b_megatron_8k_npu.sh",
        107,
    ),
}
OURS = ("today-grpo-qwen3-30b", "today-grpo-moonlight-16b", "today-dapo-deepseek-v3")
# Keys that differ in every run: paths, names, seeds, and what npu-rl sets itself.
OF_A_RUN = re.compile(
    r"data\.(seed|train_files|val_files)|.*\.megatron\.seed|.*\.(experiment_name|served_model_name)"
    r"|trainer\.(default_local_dir|device|resume_mode|total_epochs)|actor_rollout_ref\.model\.path"
)
DIFFERS = re.compile(r"\| `([\w.*]+)` \| ([\w-]+) \| (.+?) \| (.+?) \| (.+) \|")
NONE = "(none)"


def differing(name: str) -> dict[str, tuple[str, str, str]]:
    """The rows of the table of differences for this recipe: key -> the script's value, ours, why."""
    section = sources(SOURCES).partition("## Where a recipe's configuration is not its script's\n")[2]
    rows = [line for line in section.partition("| variable or command |")[0].splitlines() if "| `" in line]
    found = {}
    for line in rows:
        match = DIFFERS.fullmatch(line)
        assert match, line
        if name.endswith(f"-{match[2]}"):
            found[match[1]] = (match[3].strip("`"), match[4].strip("`"), match[5])
    return found


def test_these_are_all() -> None:
    named = {name for name in bundled_recipes() if name.startswith(("today-", "newest-"))}
    assert named == SCRIPTS.keys()
    assert set(re.findall(r"^## ((?:today|newest)-\S+)$", sources(SOURCES), re.MULTILINE)) == named
    for name in named:
        assert load_recipe(name).recipe.manifest == name.partition("-")[0]


def test_what_is_ours_is_called_ours() -> None:
    for name in SCRIPTS:
        title = load_recipe(name).recipe.title
        assert ("(ours" in title) is (name in OURS)
        assert (f"| {name} | **ours**, after " in sources(SOURCES)) is (name in OURS)
        text = bundled_recipes()[name].read_text(encoding="utf-8")
        assert ("# Where each value comes from: today.sources.md. Ours: " in text) is (name in OURS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_its_sizes_agree_with_each_other(name: str) -> None:
    loaded = load_recipe(name)
    assert judge(loaded).plan.facts.server_mode
    # What is named for the script's words has to be what the recipe runs.
    parallel, transformer = loaded.recipe.actor.parallel, loaded.recipe.actor.transformer
    for key, value in (("tensor", parallel.tensor), ("context", parallel.context)):
        assert transformer.get(f"{key}_parallel_size", value) == value


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from leaves(value, f"{path}.{name}" if path else str(name))
    else:
        yield path, node


def composed(code: Path, overrides: list[str]) -> dict[str, Any]:
    """Each key of the configuration, as the tree's own Hydra composes it."""
    folder = code / "verl" / "trainer" / "config"
    given = ["model_engine=megatron", *overrides]
    found = compose(given, folder, "ppo_trainer", sys.executable, dict(os.environ))
    return dict(leaves(found))


def added(text: str, known: set[str]) -> str:
    """The argument with `+` where main_ppo's own files, other than those of recipe.dapo, have no such key."""
    key = text.lstrip("+").partition("=")[0]
    there = text.startswith("+") or any(one == key or one.startswith(f"{key}.") for one in known)
    return text if there else f"+{text}"


@pytest.fixture(scope="module")
def codes(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("today")
    return {name: tree(upstreams, folder / name, COMPONENTS, manifest=name) for name in ("today", "newest")}


def same(text: str, value: Any) -> bool:
    return bool(text == value if NONE in (text, value) else yaml.safe_load(text) == value)


@pytest.mark.upstreams
@pytest.mark.parametrize("name", SCRIPTS)
def test_its_configuration_is_the_scripts_but_for_what_is_named(
    upstreams: Path, codes: dict[str, Path], name: str
) -> None:
    pytest.importorskip("hydra")
    script = SCRIPTS[name]
    repository = upstreams / script.repository / "repo"
    if not repository.is_dir():
        pytest.skip(f"NPU_RL_UPSTREAMS has no {script.repository}")
    code = codes[name.partition("-")[0]]
    given = script_arguments(git("show", script.at, git_dir=repository), DEVICE="npu")
    assert len(given) == script.arguments
    known = set(composed(code, []))
    theirs = composed(
        code,
        [added(text, known) for text in given if not text.startswith(("model_engine=", "+model_engine="))],
    )
    recipe = load_recipe(name).recipe
    assert engine_setting(recipe) is not None
    ours = composed(
        code,
        [argument(one.key, one.value, one.key in known) for one in flatten_mappings(list_settings(recipe))],
    )
    differs = {
        key: (theirs.get(key, NONE), ours.get(key, NONE))
        for key in theirs.keys() | ours.keys()
        if theirs.get(key, NONE) != ours.get(key, NONE) and not OF_A_RUN.fullmatch(key)
    }
    rows, used = differing(name), set()
    for key, values in differs.items():
        row = next((row for row in rows if fnmatchcase(key, row)), None)
        assert row is not None, f"{key}: {values}"
        used.add(row)
        if "*" not in row:
            assert [same(text, value) for text, value in zip(rows[row], values, strict=False)] == [True, True]
    assert used == rows.keys()


@pytest.mark.upstreams
@pytest.mark.parametrize("name", SCRIPTS)
def test_its_own_tree_takes_it(codes: dict[str, Path], name: str) -> None:
    """Every key is read there, and what is found is what a plan finds by the pins, but for upstream's own faults."""
    manifest = name.partition("-")[0]
    judgement = judge(load_recipe(name), AssembledTree(codes[manifest], manifest))
    assert {found.rule for found in judgement.errors} <= {"known-fault"}
    rules = {found.rule for found in judge(load_recipe(name)).findings}
    advice = {
        found.rule for found in judgement.findings if found.rule not in ("key-read-elsewhere", "known-fault")
    }
    assert advice == rules
