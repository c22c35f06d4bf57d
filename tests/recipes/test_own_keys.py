"""A recipe for a trainer whose keys are its own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.yaml_documents.document_kind import MANIFEST, InvalidRecipe
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.schema import SECTIONS_OF_VERL, Recipe
from npu_rl.recipes.recipe.trainer_settings import list_settings
from tests.recipes.examples import OWN_KEYS, rendered

DATA = read_yaml(OWN_KEYS.read_bytes(), "r", MANIFEST).data


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({**DATA, **changes})


def faults(path: Path, *overrides: str) -> str:
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe(str(path), overrides)
    return "\n".join(f"{'.'.join(map(str, one.path))}: {one.message}" for one in caught.value.problems)


def written(folder: Path, text: str) -> Path:
    path = folder / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_section_on_verls_keys_is_absent_and_says_so_instead_of_answering_with_a_default() -> None:
    given = recipe()
    for name in SECTIONS_OF_VERL:
        with pytest.raises(AttributeError, match=f"recipe own: {name} has no meaning"):
            getattr(given, name)
        assert not hasattr(given, name)
    assert not given.megatron
    with pytest.raises(AttributeError, match="no attribute 'stepz'"):
        given.stepz  # noqa: B018


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.function=f.py:g", "reward.function has no meaning where the trainer's keys are its own"),
        ("trainer.keys.seed=null", "the trainer has no key for it: set trainer.keys.seed to the key"),
        ("trainer.keys=null", "log is for a trainer whose keys are its own"),
        ("trainer.keys.steps=null", "required key 'steps' is missing"),
        ("trainer.metrics={reward: a}", "critic/score/mean"),
        ("trainer.keyz.steps=a", "unknown key; did you mean 'trainer.keys.steps'?"),
    ],
)
def test_faults_of_the_words_are_named(override: str, message: str) -> None:
    assert message in faults(OWN_KEYS, override)


def test_words_are_written_to_the_trainers_keys_then_the_overrides() -> None:
    assert [(one.key, one.value, one.origin) for one in list_settings(recipe())] == [
        ("megatron_training.train_iters", 10, "steps"),
        ("megatron_training.seed", 7, "seed"),
        ("generate_config.sampling_config.seed", 7, "seed"),
        ("rl_config.nodes", 2, "cluster.nodes"),
        ("rl_config.npus", 16, "cluster.dies"),
        ("rl_config.actor_resource.num_npus", 32, "cluster.dies"),
        ("megatron_training.save_interval", 5, "checkpoint.every"),
        ("actor_config.lr", 1e-6, "overrides['actor_config.lr']"),
        ("rl_config.verifier_function", ["base_acc"], "overrides['rl_config.verifier_function']"),
    ]


def test_the_command_has_the_trainers_module_configuration_and_keys_and_nothing_of_verls() -> None:
    command = rendered(recipe(), known={"megatron_training.train_iters", "actor_config.lr"})
    assert command.argv[1:6] == [
        "-m", "npu_rl_driver", "cli.train_grpo", "--config-path=/ws/code/configs", "--config-name=grpo",
    ]  # fmt: skip
    assert command.settings == [
        "megatron_training.train_iters=10",
        "++megatron_training.seed=7",
        "++generate_config.sampling_config.seed=7",
        "++rl_config.nodes=2",
        "++rl_config.npus=16",
        "++rl_config.actor_resource.num_npus=32",
        "++megatron_training.save_interval=5",
        "actor_config.lr=1e-06",
        "++rl_config.verifier_function=[base_acc]",
        "++actor_config.save=/ws/runs/r/checkpoints",
    ]
    assert command.shared["HCCL_CONNECT_TIMEOUT"] == "1800"
    assert command.shared["HCCL_SOCKET_IFNAME"] == "eth0"
    assert '"address": "10.0.0.1:6766"' in command.driver["NPU_RL_RAY"]


def test_resume_loads_the_runs_checkpoints_and_sets_what_the_recipe_says() -> None:
    given = recipe(overrides={"actor_config.load": "./weights", "actor_config.finetune": "true"})
    first, again = rendered(given).settings, rendered(given, resume=True).settings
    assert "++actor_config.load=/recipes/weights" in first
    assert "++actor_config.finetune=true" in first
    assert "++actor_config.load=/ws/runs/r/checkpoints" in again
    assert again[-2:] == ["++actor_config.finetune=false", "++actor_config.no_load_optim=false"]
    assert not any("weights" in setting for setting in again)


def test_paths_are_those_of_the_file_or_of_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parent").mkdir()
    parent = written(tmp_path / "parent", OWN_KEYS.read_text(encoding="utf-8").replace(
        "overrides: {", "overrides: {actor_config.load: ./weights, "
    ))  # fmt: skip
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: ./{parent.parent.name}/own.yaml\nname: child\n", encoding="utf-8")
    assert load_recipe(str(child)).recipe.overrides["actor_config.load"] == "./parent/weights"
    monkeypatch.chdir(tmp_path)
    here = load_recipe(str(child), ["megatron_training.data_path=./data", "actor_config.lr=./x"]).recipe
    assert here.overrides["megatron_training.data_path"] == str(tmp_path / "data")
    assert here.overrides["actor_config.lr"] == "./x"


def test_it_is_dumped_and_loaded_again_and_a_child_may_change_it(tmp_path: Path) -> None:
    loaded = load_recipe(str(OWN_KEYS), ["steps=3", "megatron_training.global_batch_size=4"])
    again = load_recipe(str(written(tmp_path, recipe_yaml(loaded))))
    assert again.recipe == loaded.recipe
    assert again.digest == loaded.digest
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = loaded.recipe.model_dump(mode="json", by_alias=True)
    assert not set(SECTIONS_OF_VERL) & set(shown)
    child = tmp_path / "child.yaml"
    child.write_text("extends: ./own.yaml\nname: child\ntrainer: {log: ~}\nsteps: 4\n", encoding="utf-8")
    assert load_recipe(str(child)).recipe.trainer.log == "steps"
