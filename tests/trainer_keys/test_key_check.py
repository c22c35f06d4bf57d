"""A recipe against a small code folder: errors, notes, and where each was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.judgement.key_check import check_keys, read_trainer
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.reserved_keys import RESERVED
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from tests.code_trees import (
    LIBRARIES,
    TRAINER,
    VERL,
    WITH_MINDSPEED,
    Loaded,
    check_recipe,
    lay,
    megatron,
    recipe,
)

A = "actor_rollout_ref.actor"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", VERL, LIBRARIES, WITH_MINDSPEED)


def errors(loaded: Loaded, code: Path | None, kind: str = "") -> list[str]:
    found = check_recipe(loaded, code)
    chosen = found.sizes if kind == "size" else found.errors
    return [str(error) for error in chosen if kind in ("", "size", error.rule)]


def test_a_good_recipe_has_no_errors(code: Path) -> None:
    found = check_recipe(recipe(), code)
    assert found.errors == found.notes == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"enable_mlapo": true}', ""),
        ('{"enable_mlap": true}', "enable_mlapo in place of"),
        ("{enable_mlapo: true}", "invalid JSON"),
    ],
)
def test_names_in_a_section_that_is_text(code: Path, text: str, words: str) -> None:
    lay(code, {"vllm_ascend/config.py": "enabled = vllm_config.additional_config.get('enable_mlapo')\n"})
    lay(code, {"vllm/engine/arg_utils.py": "class EngineArgs:\n    additional_config: dict = None\n"})
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config"
    found = errors(recipe(rollout={"engine": "vllm", "responses": 8}, overrides={key: text}), code)
    assert [words in one for one in found] == [True] * bool(words)


DEFAULTS = (
    "defaults:\n  - model_engine: dp\n  - actor@actor_rollout_ref.actor: ${model_engine}_actor\n  - _self_\n"
)
ACTOR_FILE = "strategy: %s\nppo_mini_batch_size: 256\nppo_micro_batch_size_per_gpu: null\noptim: {lr: 1e-6}\n"
BY_ENGINE = {
    "verl/trainer/config/ppo_trainer.yaml": DEFAULTS + TRAINER.replace("    strategy: fsdp\n", ""),
    "verl/trainer/config/ppo_megatron_trainer.yaml": "defaults: [ppo_trainer, {override model_engine: megatron}]\n",
    "verl/trainer/config/actor/dp_actor.yaml": ACTOR_FILE % "fsdp",
    "verl/trainer/config/actor/megatron_actor.yaml": ACTOR_FILE % "megatron" + "megatron: {seed: 42}\n",
    **{
        f"verl/trainer/config/model_engine/{name}.yaml": f"# @package _global_\nmodel_engine: {name}\n"
        for name in ("dp", "megatron")
    },
}


def test_a_tree_with_a_model_engine(code: Path) -> None:
    lay(code, BY_ENGINE)
    assert errors(recipe(), code) == []
    assert errors(recipe(actor={"strategy": "fsdp2"}), code) == []
    assert errors(megatron(), code) == []
    assert errors(megatron(trainer={"config": "ppo_trainer"}), code) == []
    assert errors(megatron(overrides={"model_engine": "megatron"}), code) == []


@pytest.mark.parametrize(
    ("loaded", "key"),
    [
        (recipe(overrides={"model_engine": "megatron"}), "overrides.model_engine"),
        (megatron(overrides={"model_engine": "dp"}), "overrides.model_engine"),
        (recipe(trainer={"config": "ppo_megatron_trainer"}), "trainer.config"),
    ],
)
def test_a_model_engine_of_another_strategy(code: Path, loaded: Loaded, key: str) -> None:
    lay(code, BY_ENGINE)
    (found,) = errors(loaded, code)
    assert found.startswith(f"r.yaml:{key}: ") and f"leave out {key}" in found
    assert "is for the strategy" in found


def test_an_unknown_key_is_told_where_it_was_written(code: Path) -> None:
    loaded = recipe(overrides={"trainer.nodes": 1})
    assert errors(loaded, code) == [
        "r.yaml:overrides.trainer.nodes: overrides['trainer.nodes']: unknown key trainer.nodes; "
        "fix: write cluster.nodes in place of overrides.trainer.nodes [unknown-key]"
    ]


def test_each_key_of_a_mapping_is_checked(code: Path) -> None:
    engine = {"additional_config": {"torchair_graph_config": {"enabel": True}}, "kv_cache_dtyp": "fp8"}
    loaded = recipe(rollout={"engine_arguments": engine})
    found = check_recipe(loaded, code).errors
    rules = {error.path[-1]: error.rule for error in found}
    assert rules == {"enabel": "unknown-key", "kv_cache_dtyp": "unknown-key"}
    assert found[0].where.endswith("engine_arguments.additional_config.torchair_graph_config.enabel")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{A}.optim.lr": "fast"}, "must be a number, not 'fast'"),
        ({f"{A}.use_kl_loss": "maybe"}, "must be true or false, not 'maybe'"),
        ({"algorithm": 5}, "algorithm is a section, not a value; it has _target_, adv_estimator"),
    ],
)
def test_a_value_its_reader_cannot_take(code: Path, changes: dict[str, Any], message: str) -> None:
    (error,) = errors(recipe(overrides=changes), code, "invalid-value")
    assert message in error


def test_what_a_backend_does_not_hear(code: Path) -> None:
    (error,) = errors(recipe(actor={"parallel": {"tensor": 2}}), code)
    assert error.endswith("actor.parallel.tensor has no effect with fsdp [key-without-effect]")
    (error,) = errors(megatron(model={"recompute": True}), code, "key-without-effect")
    assert error.endswith("model.recompute has no effect with megatron [key-without-effect]")


@pytest.mark.parametrize("key", sorted(RESERVED))
def test_npu_rls_own_keys_cannot_be_overridden(key: str) -> None:
    (error,) = errors(recipe(overrides={key: "x"}), None, "reserved-key")
    assert f"{key} is npu-rl's to set: {RESERVED[key]}" in error


def test_adaptations(code: Path) -> None:
    runtime = {"npu_rl_runtime/hf.py": 'enabled("hf-rollout-repeat")\n'}
    lay(code, runtime, {"vllm/x.py": 'enabled("from-a-patch", True)\n'})
    known = {"hf-rollout-repeat": True, "from-a-patch": False}
    assert errors(recipe(adaptations=known), code) == []
    (error,) = errors(recipe(adaptations={**known, "hf-rollout-repeats": True}), code)
    assert "unknown adaptation 'hf-rollout-repeats'" in error
    assert "fix: write adaptations.hf-rollout-repeat in place of adaptations.hf-rollout-repeats [" in error


@pytest.mark.parametrize(
    ("trainer", "path", "message"),
    [
        ({"config": "nope"}, ("trainer", "config"), "nope"),
        ({"module": "verl.trainer.none"}, ("trainer", "module"), "the code has no module verl.trainer.none"),
    ],
)
def test_a_trainer_that_is_not_there(
    code: Path, trainer: dict[str, str], path: tuple[str, ...], message: str
) -> None:
    (error,) = check_recipe(recipe(trainer=trainer), code).errors
    assert error.path == path and message in error.message and error.rule == "trainer-config"


def test_what_is_not_checked_is_listed_and_no_note(code: Path) -> None:
    loaded = recipe(model={"config": {"a": 1, "b": 2}})
    trainer = read_trainer(loaded.recipe, code)
    assert isinstance(trainer, KeyResolver) and check_keys(loaded, trainer, code) == []
    assert trainer.unchecked == {"actor_rollout_ref.model.override_config": "transformers reads them"}


def test_a_workspace_of_another_manifest_is_told_and_not_read(code: Path) -> None:
    judgement = judge(load_recipe("quickstart", ["overrides.no.such=1"]), AssembledTree(code, "other"))
    assert [(found.rule, found.key) for found in judgement.errors] == [("workspace-manifest", "manifest")]
    assert "the recipe is for quickstart" in judgement.errors[0].message
    assert judgement.known == frozenset()
