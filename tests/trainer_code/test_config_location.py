"""Where a trainer's configuration lies: in its module's folder, or in the one that a recipe names."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.recipes.trainer_code.config_location import (
    ConfigLocation,
    FolderFault,
    absolute_search_path,
    folders_with,
)
from npu_rl.recipes.trainer_code.config_tree import ModuleFault
from tests.code_trees import DAPO, VERL, lay

DAPO_MODULE = "recipe.dapo.main_dapo"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", VERL | DAPO)


def test_the_folder_is_the_modules_or_the_named_one(code: Path) -> None:
    assert ConfigLocation(DAPO_MODULE, "dapo_trainer").find_folder(code) == code / "recipe/dapo/config"
    named = ConfigLocation(DAPO_MODULE, "ppo_trainer", "verl/trainer/config")
    assert named.find_folder(code) == code / "verl/trainer/config"


def test_a_module_that_names_no_folder_will_do_if_the_recipe_does(code: Path) -> None:
    (code / "recipe/dapo/main_dapo.py").write_text("import hydra\n@hydra.main()\ndef main(c): pass\n")
    with pytest.raises(ModuleFault):
        ConfigLocation(DAPO_MODULE, "dapo_trainer").find_folder(code)
    assert ConfigLocation(DAPO_MODULE, "x", "recipe/dapo/config").find_folder(code).is_dir()


@pytest.mark.parametrize("folder", ["verl/trainer/confg", "verl/trainer/main_ppo.py"])
def test_a_folder_that_is_missing(code: Path, folder: str) -> None:
    with pytest.raises(FolderFault, match="no such folder") as fault:
        ConfigLocation(DAPO_MODULE, "ppo_trainer", folder).find_folder(code)
    assert fault.value.where == folder


def test_the_search_path_is_read_and_made_absolute(code: Path) -> None:
    tree = compose_config(code, ConfigLocation(DAPO_MODULE, "dapo_trainer"))
    assert tree.search_path == ("file://verl/trainer/config",)
    assert absolute_search_path(tree.search_path, code) == (f"file://{code}/verl/trainer/config",)
    assert compose_config(code, ConfigLocation("verl.trainer.main_ppo", "ppo_trainer")).search_path == ()


@pytest.mark.parametrize("place", ["pkg://verl.trainer.config", "file:///x/y", "/x/y"])
def test_a_search_path_that_holds_everywhere_stays(place: str) -> None:
    assert absolute_search_path((place,), Path("/code")) is None
    assert absolute_search_path((place, "a/b"), Path("/code")) == (place, "file:///code/a/b")


def test_folders_that_have_a_configuration(code: Path) -> None:
    assert folders_with(code, "ppo_megatron_trainer") == ["verl/trainer/config"]
    assert folders_with(code, "dapo_trainer.yaml") == ["recipe/dapo/config"]
    assert folders_with(code, "nope") == [] == folders_with(code, "../x")
