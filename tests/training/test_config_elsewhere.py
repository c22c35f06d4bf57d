"""Trainers whose configuration lies elsewhere: their own Hydra takes what check took, wherever it is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import Command, Folders, render
from npu_rl.recipes.recipe.trainer_settings import config_location
from npu_rl.training.run.hydra_compose import compose
from tests.code_trees import DAPO, VERL, lay

DAPO_MODULE = "recipe.dapo.main_dapo"
PRINTS = """
import hydra, json
from omegaconf import OmegaConf

@hydra.main(config_path="config", config_name="dapo_trainer", version_base=None)
def main(config):
    print(json.dumps(OmegaConf.to_container(config)["data"]))

if __name__ == "__main__":
    main()
"""


def loaded(*settings: str) -> Any:
    named = any(one.startswith("trainer.module=") for one in settings)
    return load_recipe("quickstart", [*settings, *([] if named else [f"trainer.module={DAPO_MODULE}"])])


def command(code: Path, *settings: str) -> Command:
    """The command of a run whose trainer is judged by the same code as `check`."""
    one = loaded(*settings)
    judgement = judge(one, AssembledTree(code, "quickstart"))
    folders = Folders(
        code=code, run=code.parent / "runs/r", attempt=code.parent / "runs/r/1", fixtures=code, byte_code="k",
        pycache=code.parent / "pycache", recipe=code, ray=None, on_path=(),
    )  # fmt: skip
    return render(
        one.recipe, folders, run_name="r", run_id="0123456789abcdef", python=sys.executable, known=judgement.known,
        manifest_env={}, search_path=judgement.search_path,
    )  # fmt: skip


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code of it", VERL | DAPO | {"recipe/dapo/main_dapo.py": PRINTS})


def trainer_findings(code: Path, *settings: str) -> list[tuple[str, str, str]]:
    found = judge(loaded(*settings), AssembledTree(code, "quickstart")).findings
    return [(one.key, one.message, one.fix) for one in found if one.rule == "trainer-config"]


def test_check_finds_the_folder_that_a_recipe_has_to_name(code: Path) -> None:
    (found,) = trainer_findings(code, "trainer.config=ppo_megatron_trainer")
    key, message, fix = found
    assert key == "trainer.config" and "primary config 'ppo_megatron_trainer'" in message
    assert fix == "set trainer.config_path to verl/trainer/config"
    named = ["trainer.config=ppo_megatron_trainer", "trainer.config_path=verl/trainer/config"]
    assert trainer_findings(code, *named) == []
    assert trainer_findings(code, "trainer.config=dapo_trainer") == []


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("settings", "generates"),
    [
        (["trainer.config=ppo_trainer", "trainer.config_path=verl/trainer/config"], False),
        (["trainer.config=dapo_trainer", "trainer.config_path=recipe/dapo/config"], True),
    ],
)
def test_the_run_and_the_dry_run_compose_the_same(
    code: Path, tmp_path: Path, settings: list[str], generates: bool
) -> None:
    """With a real Hydra, in another folder than the code's."""
    pytest.importorskip("hydra")
    made = command(code, *settings)
    argv = [word for word in made.argv if word != "npu_rl_driver"]
    env = {**os.environ, "PYTHONPATH": str(code)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = config_location(loaded(*settings).recipe).find_folder(code)
    found = compose(made.hydra_overrides, folder, made.config, sys.executable, dict(os.environ))
    for data in (json.loads(done.stdout.splitlines()[-1]), found["data"]):
        assert data["max_prompt_length"] and ("gen_batch_size" in data) is generates
