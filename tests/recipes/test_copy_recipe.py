"""A bundled recipe beside you: its bytes, its schema, and nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_recipes, data_root
from npu_rl.common.errors import UsageError
from npu_rl.recipes.recipe.copy_recipe import copy_recipe
from npu_rl.recipes.recipe.load_recipe import load_recipe

SCHEMA = (data_root() / "recipes" / "recipe.schema.json").read_bytes()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", list(bundled_recipes()))
def test_every_bundled_recipe_can_be_copied_and_means_the_same(name: str) -> None:
    copied, schema = copy_recipe(name)
    assert (copied, schema) == (Path(f"{name}.yaml"), Path("recipe.schema.json"))
    assert copied.read_bytes() == bundled_recipes()[name].read_bytes()
    assert Path("recipe.schema.json").read_bytes() == SCHEMA
    assert load_recipe(f"./{name}.yaml").digest == load_recipe(name).digest


def test_nothing_is_overwritten(here: Path) -> None:
    for name in ("quickstart.yaml", "recipe.schema.json"):
        (here / name).write_text("mine")
    (here / "dangling.yaml").symlink_to(here / "nowhere")
    for target in (None, Path("quickstart.yaml"), Path("dangling.yaml")):
        with pytest.raises(UsageError, match="already exists"):
            copy_recipe("quickstart", target)
    assert copy_recipe("quickstart", Path("other.yaml")) == (Path("other.yaml"),)
    assert {path.read_text() for path in (here / "quickstart.yaml", here / "recipe.schema.json")} == {"mine"}
    assert not (here / "nowhere").exists()
