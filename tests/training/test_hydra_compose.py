"""A command line composed by the tree's own Hydra, in another interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, RecipeError
from npu_rl.recipes.recipe.trainer_command import argument
from npu_rl.training.run.hydra_compose import compose
from tests.code_trees import VERL, lay

REFERENCES = (
    "a: ${b.c}\nb: {c: 3, d: '${nowhere.x}', e: '${oc.env:NPU_RL_SURELY_UNSET}', f: ['${a}', 1], g: '???'}\n"
)


def composed(
    folder: Path, *overrides: str, config: str = "ppo_trainer", python: str = sys.executable
) -> dict[str, Any]:
    return compose(overrides, folder, config, python, dict(os.environ))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = lay(tmp_path, VERL, {"verl/trainer/config/references.yaml": REFERENCES})
    return code / "verl/trainer/config"


@pytest.mark.rehearsal
class TestHydra:
    """With a real Hydra."""

    @pytest.fixture(autouse=True)
    def hydra(self) -> None:
        pytest.importorskip("hydra")

    def test_what_does_not_resolve_stays_as_text(self, folder: Path) -> None:
        found = composed(folder, config="references")
        assert found["a"] == 3 and found["b"]["f"] == [3, 1]
        assert (found["b"]["d"], found["b"]["e"]) == ("${nowhere.x}", "${oc.env:NPU_RL_SURELY_UNSET}")

    def test_a_key_that_another_argument_adds_may_be_set_again(self, tmp_path: Path) -> None:
        """verl's ref refers to the actor's override_transformer_config; its script for Qwen3-235B sets both."""
        (tmp_path / "twins.yaml").write_text("actor: {own: {}}\nref: {own: '${actor.own}'}\n")
        given = [argument(f"{part}.own.flash", True, known=False) for part in ("actor", "ref")]
        found = composed(tmp_path, *given, config="twins")
        assert found["ref"] == found["actor"] == {"own": {"flash": True}}

    @pytest.mark.parametrize(
        ("override", "why"),
        [
            ("trainer.nodes=1", "Could not override 'trainer.nodes'"),
            ("+trainer.nnodes=1", "Could not append to config"),
            ("data.train_files='", "data.train_files='"),
        ],
    )
    def test_a_refusal_names_the_argument(self, folder: Path, override: str, why: str) -> None:
        with pytest.raises(RecipeError) as refused:
            composed(folder, "data.train_batch_size=8", override)
        assert refused.value.where == override and why in str(refused.value)
        assert "object_type" not in str(refused.value), "nothing only Hydra's authors can use"

    def test_a_broken_or_missing_configuration_is_named(self, folder: Path) -> None:
        (folder / "broken.yaml").write_text("a: [\n", encoding="utf-8")
        for config in ("broken", "nope"):
            with pytest.raises(RecipeError, match=config):
                composed(folder, config=config)


def test_an_interpreter_without_hydra(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(empty)], check=True)
    with pytest.raises(HostError, match="has no hydra") as missing:
        composed(folder, python=str(empty / "bin" / "python"))
    assert "--python" in str(missing.value)
