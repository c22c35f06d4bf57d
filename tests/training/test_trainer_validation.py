"""The trainer's own validation of its configuration, as check, plan and train have it run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import archive, lay
from tests.own_trainer import TREE, write_recipe

RIGHT = {
    **TREE,
    "configs/own.yaml": TREE["configs/own.yaml"].replace("shuffle_minibatch", "shuffle_mini_batch"),
}
MINDSPEED_RL = "62e9928ae89d9570f659b46e816bc55e1191b5e7"
OF_MINDSPEED_RL = """
schema: 1
name: mindspeed-rl
title: GRPO with MindSpeed-RL
manifest: quickstart
device: npu
steps: 10
trainer:
  module: cli.train_grpo
  config: grpo_qwen25_7b_A3
  keys:
    steps: megatron_training.train_iters
    cluster: {world: rl_config.actor_resource.num_npus}
    checkpoint: {folder: actor_config.save, load: actor_config.load}
  sections:
    megatron_training: mindspeed_rl.config_cls.megatron_config.MegatronConfig
    actor_config: mindspeed_rl.config_cls.megatron_config.MegatronConfig
    model.*: mindspeed_rl.config_cls.megatron_config.MegatronConfig
    rl_config: mindspeed_rl.config_cls.rl_config.RLConfig
    generate_config: mindspeed_rl.config_cls.generate_config.GenerateConfig
  validate: cli.train_grpo.parse_training_config
cluster: {dies: 16}
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", RIGHT)


def judged(code: Path, *overrides: str, python: str = sys.executable, recipe: str = "") -> Judgement:
    loaded = load_recipe(recipe or str(write_recipe(code.parent)), overrides)
    tree = AssembledTree(code, loaded.manifest_facts.name, setup_command="npu-rl setup --python PATH")
    return judge(loaded, tree, find_python=lambda: python, root=code.parent)


def of_validation(judgement: Judgement) -> list[Finding]:
    return [one for one in judgement.findings if one.rule.startswith("trainer-validation")]


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.rehearsal
class TestWithAHydra:
    """The function runs, though the tree's packages import what no machine without devices has."""

    @pytest.fixture(autouse=True)
    def hydra(self) -> None:
        pytest.importorskip("hydra")

    def test_what_it_accepts_has_no_finding(self, code: Path) -> None:
        assert of_validation(judged(code)) == []

    def test_what_it_refuses_is_an_error_with_its_words_and_line(self, code: Path) -> None:
        (found,) = of_validation(judged(code, "steps=5"))
        assert found.severity is Severity.ERROR
        assert str(found).endswith(
            ": trainer.validate: the trainer's own parse refuses the recipe: train_iters 5 must be divisible by 2 "
            "(own/train.py:20) [trainer-validation]"
        )
        assert "own-recipe.yaml:" in found.where
        assert not judged(code, "steps=5").ok

    def test_no_byte_code_is_left_in_the_tree(self, code: Path) -> None:
        before = sorted(code.rglob("*"))
        assert judged(code).ok
        assert sorted(code.rglob("*")) == before

    def test_a_module_that_it_needs_and_is_not_there_is_no_fault_of_the_recipe(self, tmp_path: Path) -> None:
        text = TREE["own/config/rl.py"].replace("\nfrom", "\nimport a_package_of_the_devices\nfrom", 1)
        (found,) = of_validation(judged(lay(tmp_path / "code", {**RIGHT, "own/config/rl.py": text})))
        assert found.severity is Severity.NOTE
        assert "No module named 'a_package_of_the_devices' (own/config/rl.py:2)" in found.message

    def test_a_package_that_defines_a_name_itself_is_executed_as_a_whole(self, tmp_path: Path) -> None:
        tree = {
            **RIGHT,
            "own/utils/__init__.py": "import logging\nmade = 1\ndef Loggers(name): return logging\n",
        }
        assert of_validation(judged(lay(tmp_path / "code", tree))) == []

    def test_what_raises_anything_else_is_refused_too(self, tmp_path: Path) -> None:
        tree = {
            **RIGHT,
            "own/train.py": TREE["own/train.py"].replace("if rl.npus is None", "if rl.missing is None"),
        }
        (found,) = of_validation(judged(lay(tmp_path / "code", tree)))
        assert "'RLConfig' object has no attribute 'missing' (own/train.py:21)" in found.message

    @pytest.mark.upstreams
    def test_mindspeed_rls_own(self, upstreams: Path, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        code = tmp_path / "code"
        for folder in ("cli", "configs", "mindspeed_rl"):
            archive(upstreams / "Ascend+MindSpeed-RL" / "repo", MINDSPEED_RL, folder, code)
        recipe = str(tmp_path / "recipe.yaml")
        (tmp_path / "recipe.yaml").write_text(OF_MINDSPEED_RL, encoding="utf-8")
        unread = "plan.except.unread-setting=false is the default"
        found = judged(code, recipe=recipe)
        assert [one.trainer_key for one in found.errors] == ["rl_config.shuffle_minibatch"]
        assert found.errors[0].where == "configs/grpo_qwen25_7b_A3.yaml:73"
        assert of_validation(judged(code, unread, recipe=recipe)) == []
        (refused,) = of_validation(judged(code, unread, "cluster.dies=6", recipe=recipe))
        assert (
            "must be divisible by (tensor_parallel * pipeline_parallel * context_parallel) = 4*1*1=4"
            in str(refused)
        )
        assert "(mindspeed_rl/config_cls/validate_config.py:43)" in str(refused)


def test_an_interpreter_without_hydra_is_a_note_and_no_refusal(code: Path, tmp_path: Path) -> None:
    python = script(tmp_path, 'echo \'npu-rl-validated:{"unrun": "it has no hydra"}\'')
    judgement = judged(code, python=python)
    (found,) = of_validation(judgement)
    assert found.severity is Severity.NOTE and judgement.ok
    assert f"the trainer's own parse was not run by {python}: it has no hydra" in found.message
    assert "npu-rl setup --python PATH" in found.fix


@pytest.mark.parametrize("text", ["echo broken >&2; exit 1", "exit 1"])
def test_an_interpreter_that_fails_is_a_note(code: Path, tmp_path: Path, text: str) -> None:
    (found,) = of_validation(judged(code, python=script(tmp_path, text)))
    assert found.severity is Severity.NOTE
    assert found.message.endswith(("broken", "exit status 1"))


def test_an_interpreter_that_is_not_there_is_a_note(code: Path) -> None:
    (found,) = of_validation(judged(code, python="/nowhere/python"))
    assert found.severity is Severity.NOTE


def test_it_is_not_run_where_the_recipe_has_errors_or_names_no_function(code: Path, tmp_path: Path) -> None:
    python = script(tmp_path, f"touch {tmp_path}/ran")
    assert of_validation(judged(code, "rl.nothing=1", python=python)) == []
    assert of_validation(judged(code, "trainer.validate=null", python=python)) == []
    assert not (tmp_path / "ran").exists()


def test_the_child_needs_nothing_of_npu_rl() -> None:
    request = '{"code": "/", "folder": "/", "config": "x", "overrides": [], "function": "a.b"}'
    argv = [sys.executable, "-S", "-I", str(INJECTED / "npu_rl_validate.py"), request]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == 'npu-rl-validated:{"unrun": "it has no hydra"}\n'
