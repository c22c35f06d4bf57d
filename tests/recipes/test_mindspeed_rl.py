"""The recipe of MindSpeed-RL: every value has a source, each key of the published file is there or explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.recipe_fields import read_scalar
from tests.patchsets.flagship_tree import tree
from tests.recipes.source_tables import said, sources, table
from tests.support import git

NAME, STACK = "mindspeed-rl-grpo-qwen25-7b", "mindspeed-rl-grpo"
PIN = "62e9928ae89d9570f659b46e816bc55e1191b5e7"
PUBLISHED = "configs/grpo_qwen25_7b_A3.yaml"
MISSPELT = {"rl_config.shuffle_minibatch": "rl_config.shuffle_mini_batch"}  # patch 0001-shuffle-mini-batch


def settings() -> dict[str, Any]:
    return {key: one.value for key, one in load_recipe(NAME).settings.items()}


def published(upstreams: Path) -> dict[str, Any]:
    text = git("cat-file", "blob", f"{PIN}:{PUBLISHED}", git_dir=upstreams / "Ascend+MindSpeed-RL" / "repo")
    return {MISSPELT.get(key, key): value for key, value in said(yaml.safe_load(text))}


def test_it_is_for_this_stack() -> None:
    assert load_recipe(NAME).recipe.manifest == STACK


@pytest.mark.upstreams
def test_the_published_file_key_by_key(upstreams: Path) -> None:
    """A value that is "yaml" is the published one; every published key is set or in the table of what is left out."""
    theirs, ours = published(upstreams), settings()
    left_out = sources(STACK).partition("and the recipe leaves out\n")[2].partition("\n## ")[0]
    by_us = {key.removeprefix("overrides.") for key, _, source, _ in table(STACK, NAME) if source == "ours"}
    for key, value in theirs.items():
        if key in ours and key not in by_us:
            assert ours[key] == read(value), key
        elif key not in ours:
            assert f"| `{key.partition('.')[0] if key.startswith('defaults') else key}` |" in left_out, key
    assert by_us - theirs.keys() >= {"rl_config.integrated_mode_config.ref_model_load_path"}
    taken = {
        key.removeprefix("overrides.")
        for key, _, source, _ in table(STACK, NAME)
        if source == "yaml" and key.startswith("overrides.")
    }
    assert taken <= theirs.keys()


def read(value: Any) -> Any:
    """A published value as a recipe reads it."""
    return [read_scalar(str(item)) for item in value] if isinstance(value, list) else read_scalar(text(value))


def text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.upstreams
def test_the_tree_takes_it(upstreams: Path, tmp_path: Path) -> None:
    code = tree(upstreams, tmp_path / "code", ["MindSpeed-RL"], manifest=STACK)
    found = judge(load_recipe(NAME), AssembledTree(code, STACK)).findings
    assert [one for one in found if one.severity is Severity.ERROR] == []


@pytest.mark.upstreams
def test_a_mistyped_key_is_an_error(upstreams: Path, tmp_path: Path) -> None:
    """BaseConfig.update of the trainer only warns."""
    code = tree(upstreams, tmp_path / "code", ["MindSpeed-RL"], manifest=STACK)
    loaded = load_recipe(NAME, ["overrides.rl_config.init_kl_coeff=0.1"])
    errors = [
        one for one in judge(loaded, AssembledTree(code, STACK)).findings if one.severity is Severity.ERROR
    ]
    assert [one.key for one in errors] == ["overrides['rl_config.init_kl_coeff']"]
    assert "init_kl_coef" in str(errors[0].fix or errors[0])
