"""The model and the questions a recipe asks to have made up: made once, kept beside the runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from npu_rl.disk import disk_errors
from npu_rl.errors import HostError
from npu_rl.recipes.schema import Recipe
from npu_rl.standins import INJECTED
from npu_rl.training.interpreter import Interpreter
from npu_rl.training.process import run_quietly

MAKER = "npu_rl_make"
MAKERS_OWN = {"PYTHONPATH": str(INJECTED)}
_DEPENDS_ON = ("torch", "numpy", "transformers", "tokenizers", "pyarrow")


def is_needed(recipe: Recipe) -> bool:
    """Whether the recipe asks for anything to be made."""
    return bool(recipe.model.make or recipe.data.make)


def place(runs: Path, recipe: Recipe, interpreter: Interpreter) -> Path:
    """Where it is or will be: named by all that decides its bytes."""
    said = {
        "seed": recipe.seed,
        "rows": recipe.data.rows,
        "kinds": _kinds(recipe),
        "makers": [
            hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(INJECTED.glob(f"{MAKER}*.py"))
        ],
        "packages": {name: interpreter.packages.get(name) for name in _DEPENDS_ON},
    }
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return runs / ".made" / digest[:16]


def _kinds(recipe: Recipe) -> list[str]:
    return [recipe.model.make or "tiny-deepseek-v3", recipe.data.make or "digit-questions"]


def maker(interpreter: Interpreter, recipe: Recipe, folder: str) -> list[str]:
    """The command that makes it in `folder`, which is there and empty. Its environment needs MAKERS_OWN."""
    return [
        *(interpreter.path, "-m", MAKER, folder),
        *(str(recipe.seed), str(recipe.data.rows), *_kinds(recipe)),
    ]


def make(folder: Path, recipe: Recipe, interpreter: Interpreter, environment: Mapping[str, str]) -> None:
    """Make it, unless it is there; it appears whole or not at all. Raises HostError with the maker's words."""
    if folder.is_dir():
        return
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    with disk_errors(folder):
        staging.mkdir(parents=True, exist_ok=True)
    try:
        finished = run_quietly(
            maker(interpreter, recipe, str(staging)), {**environment, **MAKERS_OWN}, staging, 600.0
        )
        if finished.code != 0:
            raise HostError(
                "The model and the data of this recipe could not be made",
                where=interpreter.shown,
                why=finished.stderr.strip()[-1500:] or f"exit status {finished.code}",
            )
        with disk_errors(folder):
            try:
                staging.rename(folder)
            except OSError:
                if not folder.is_dir():  # another run made the same meanwhile
                    raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
