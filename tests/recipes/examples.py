"""Example recipes shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_command import Command, Folders, render

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").glob("*.yaml"))
GOOD = sorted((HERE / "good").glob("*.yaml"))

MINIMAL = (HERE / "good" / "minimal.yaml").read_text(encoding="utf-8")
EVERYTHING = HERE / "good" / "everything.yaml"
OWN_KEYS = HERE / "good" / "own-keys.yaml"


def rendered(given: Recipe, code: Path = Path("/ws/code"), **options: Any) -> Command:
    """The command of a run of the recipe, in folders that need not be there."""
    root = Path("/ws")
    folders = Folders(
        code=code, run=root / "runs/r", attempt=root / "runs/r/attempts/1", fixtures=root / "made",
        byte_code="k", pycache=root / "pycache", recipe=Path("/recipes"), ray=Path("/tmp/ray"), on_path=(Path("/on"),),
    )  # fmt: skip
    told = {"known": set(), "manifest_env": {}, **options}
    return render(given, folders, run_name="r", run_id="0123456789abcdef", python="/py", **told)


def open_mapping(path: Path) -> str:
    """Return a key of the example whose mapping has keys of a person's own."""
    return "trainer.resume" if path.name.startswith("own-") else "reward.arguments"
