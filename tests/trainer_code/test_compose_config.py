"""The trainer's configuration as Hydra composes it, in a child process and without anything of the tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.common.python_roots import INJECTED
from npu_rl.recipes.trainer_code import compose_config as module
from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigFault
from tests.code_trees import DAPO, VERL, lay

MAIN = "verl.trainer.main_ppo"
ENGINE = {
    "verl/trainer/config/engined.yaml": "defaults:\n  - model_engine: dp\n  - a@b: ${model_engine}_a\n  - _self_\n",
    **{
        f"verl/trainer/config/{folder}/{name}{more}.yaml": f"{head}k: {name}\n"
        for folder, more, head in (("model_engine", "", "# @package _global_\n"), ("a", "_a", ""))
        for name in ("dp", "megatron")
    },
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", VERL | DAPO | ENGINE)


def test_a_child_of_npu_rls_own_interpreter_composes(code: Path) -> None:
    request = {"code": str(code), "folder": str(code / "verl/trainer/config"), "config": "ppo_trainer"}
    request |= {"groups": {}, "settings": []}
    argv = [sys.executable, "-I", str(INJECTED / "npu_rl_hydra_compose.py"), json.dumps(request)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/")
    answer = json.loads(done.stdout.removeprefix("npu-rl-composed:"))
    tree = compose_config(code, ConfigLocation(MAIN, "ppo_trainer"))
    assert (
        answer["defaults"]["data"]["train_batch_size"] == tree.entries["data.train_batch_size"].value == 1024
    )
    assert tree.entries["actor_rollout_ref.rollout.response_length"].interpolation
    assert tree.entries["data"].section and "n" in tree.children("actor_rollout_ref.rollout")
    assert tree.holders("n") == ["actor_rollout_ref.rollout", "actor_rollout_ref.rollout.val_kwargs"]


def test_groups_are_chosen_and_unknown_ones_ignored(code: Path) -> None:
    location = ConfigLocation(MAIN, "engined", None, {"model_engine": "megatron", "no_group": "x"})
    tree = compose_config(code, location)
    assert tree.entries["b.k"].value == "megatron"
    assert tree.choices == {"model_engine": "megatron", "a@b": "megatron_a"}
    assert compose_config(code, ConfigLocation(MAIN, "engined")).entries["b.k"].value == "dp"


@pytest.mark.parametrize("place", ["file://verl/trainer/config", "pkg://verl.trainer.config"])
def test_a_search_path_is_of_the_tree_and_imports_nothing(code: Path, place: str) -> None:
    file = code / "recipe/dapo/config/dapo_trainer.yaml"
    file.write_text(file.read_text().replace("file://verl/trainer/config", place))
    lay(code, {"verl/__init__.py": "raise SystemExit(3)\n"})
    tree = compose_config(code, ConfigLocation("recipe.dapo.main_dapo", "dapo_trainer"))
    assert tree.search_path == (place,)
    assert {"data.gen_batch_size", "data.train_batch_size"} <= tree.entries.keys()


def test_what_hydra_refuses(code: Path) -> None:
    settings = [("data.train_batch_size", "3"), ("data.x", "[1,2"), ("not.there", "1")]
    tree = compose_config(code, ConfigLocation(MAIN, "ppo_trainer"), settings)
    assert list(tree.refused) == ["data.x"] and "no viable alternative" in tree.refused["data.x"]
    with pytest.raises(ConfigFault, match="nope") as fault:
        compose_config(code, ConfigLocation(MAIN, "nope"))
    assert fault.value.where == "verl/trainer/config/nope.yaml"
    (code / "verl/trainer/config/ppo_trainer.yaml").write_text("a: [\n")
    with pytest.raises(ConfigFault):
        compose_config(code, ConfigLocation(MAIN, "ppo_trainer"))


def test_an_interpreter_that_lacks_hydra(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "answer", getattr(module.answer, "__wrapped__", module.answer))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(HostError, match="own interpreter"):
        compose_config(code, ConfigLocation(MAIN, "ppo_trainer"))
