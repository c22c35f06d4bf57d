"""The tiny model and the generated data of a recipe, made once and kept beside the runs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter
from npu_rl.common.process import run_quietly
from npu_rl.common.python_roots import INJECTED, REHEARSAL
from npu_rl.recipes.recipe.schema import Recipe

MAKER_MODULE = "npu_rl_make"
MAKER_ENVIRONMENT = {"PYTHONPATH": f"{INJECTED}{os.pathsep}{REHEARSAL}"}
_DEPENDS_ON = ("torch", "numpy", "transformers", "tokenizers", "pyarrow")


def is_needed(recipe: Recipe) -> bool:
    """Return whether the recipe uses a tiny model or generated data."""
    return not recipe.has_own_keys and bool(recipe.model.make or recipe.data.make)


def model_folder(runs: Path, recipe: Recipe, interpreter: Interpreter) -> Path:
    """Return the folder of the model and the data, named after everything that determines their content."""
    if recipe.has_own_keys:
        return runs / ".made"  # nothing is made for it
    inputs = {
        "seed": recipe.seed,
        "rows": recipe.data.rows,
        "kinds": _kinds(recipe),
        "makers": [
            hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(REHEARSAL.glob(f"{MAKER_MODULE}*.py"))
        ],
        "packages": {name: interpreter.packages.get(name) for name in _DEPENDS_ON},
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return runs / ".made" / digest[:16]


def _kinds(recipe: Recipe) -> list[str]:
    return [recipe.model.make or "tiny-deepseek-v3", recipe.data.make or "digit-questions"]


def maker_command(interpreter: Interpreter, recipe: Recipe, folder: str) -> list[str]:
    """Return the command that makes model and data in an empty folder. It needs MAKER_ENVIRONMENT's variables."""
    return [
        *(interpreter.path, "-m", MAKER_MODULE, folder),
        *(str(recipe.seed), str(recipe.data.rows), *_kinds(recipe)),
    ]


def make(folder: Path, recipe: Recipe, interpreter: Interpreter, environment: Mapping[str, str]) -> None:
    """Make the model and the data, atomically and once. Raises HostError with the command's output."""
    if folder.is_dir():
        return
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    with disk_errors(folder):
        staging.mkdir(parents=True, exist_ok=True)
    try:
        finished = run_quietly(
            maker_command(interpreter, recipe, str(staging)),
            {**environment, **MAKER_ENVIRONMENT},
            staging,
            600.0,
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
                if not folder.is_dir():  # else another run has made the same
                    raise
    finally:
        remove_tree(staging)
