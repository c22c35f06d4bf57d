"""The recipes of verl_npu's examples: sizes, and what their own tree says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.sizing.parallelism import DATA_KEY
from tests.patchsets.flagship_tree import tree
from tests.recipes.source_tables import changed, sources, table
from tests.recipes.test_published_scripts import VERL_NPU as SCRIPTS

SOURCES = "verl-npu-plugin"


def test_these_are_all() -> None:
    assert {name for name in bundled_recipes() if name.startswith("verl-npu-")} == SCRIPTS.keys()
    assert re.findall(r"^## (verl-npu-\S+)$", sources(SOURCES), re.MULTILINE) == list(SCRIPTS)
    assert all(load_recipe(name).recipe.manifest == "verl-npu-plugin" for name in SCRIPTS)


def test_the_one_of_4k_is_for_timing() -> None:
    """It differs from that of 20k in its lengths, the end of responses and the filter alone."""
    timing, training = (load_recipe(f"verl-npu-dapo-qwen25-32b-{length}") for length in ("4k", "20k"))
    assert timing.recipe.benchmark and timing.recipe.rollout.ignore_end and not training.recipe.benchmark
    named = {key for key, *_ in table(SOURCES, timing.recipe.name)}
    assert changed(training.recipe.name, timing.recipe.name) == named | {"name", "title", "extends"}


@pytest.fixture(scope="module")
def code(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    components = ("verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed")
    return tree(upstreams, tmp_path_factory.mktemp("plugin") / "code", components, manifest="verl-npu-plugin")


@pytest.mark.upstreams
@pytest.mark.parametrize("name", SCRIPTS)
def test_its_own_tree_takes_it(code: Path, name: str) -> None:
    """Every key is read there, every rule was looked up there, and what is found is what a plan finds by the pins."""
    judgement = judge(load_recipe(name), AssembledTree(code, "verl-npu-plugin"))
    assert judgement.errors == ()
    notes = {one.path for one in judgement.findings if one.severity is Severity.NOTE}
    assert notes <= {
        ("overrides", DATA_KEY),
        ("overrides", "actor_rollout_ref.rollout.enable_expert_parallel"),
    }
    advice = {one.rule for one in judgement.findings if one.severity is Severity.ADVICE}
    assert advice == {one.rule for one in judge(load_recipe(name)).findings}
    # Three rules rest on the engines of 0.8.
    elsewhere = {"megatron-needs-mbridge", "dynamic-batches-agree", "micro-batch-divides-share"}
    assert {rule.id for rule in judgement.plan.rules if rule.skipped} <= elsewhere
