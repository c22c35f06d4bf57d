"""The trainer's own validation of its configuration (`trainer.validate`), run in the training interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_rl.common import host_facts, python_roots
from npu_rl.common.callers_path import callers_path
from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import Secrets
from npu_rl.common.process import run_quietly
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
from npu_rl.recipes.judgement.own_keys_check import NOT_VALIDATED, VALIDATION
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.own_keys import run_settings
from npu_rl.recipes.recipe.trainer_command import argument
from npu_rl.recipes.recipe.trainer_settings import config_location, last_settings
from npu_rl.recipes.trainer_keys.plain_config import plain_config

_CHILD = python_roots.INJECTED / "npu_rl_validate.py"
_MARK = "npu-rl-validated:"
_SECONDS = 180.0
_PATH = ("trainer", "validate")
_CHECKPOINTS = Path("/checkpoints")  # a run's folder, which no validation needs to exist


class NotValidated(Exception):
    """The trainer's own function can't be run. Has the reason and a fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def validated(
    judgement: Judgement,
    loaded: LoadedRecipe,
    tree: AssembledTree,
    find_python: Callable[[], str],
    root: Path = Path("/"),
) -> Judgement:
    """Add findings of the trainer's validation function; skipped without one, or if the judgement has errors.

    Args:
        find_python: Returns the training interpreter, or raises NotValidated.
        root: Where /dev is looked for.
    """
    function = loaded.recipe.trainer.validate_
    if function is None or not judgement.ok:
        return judgement
    try:
        python = find_python()
    except NotValidated as error:
        return _not_validated(judgement, loaded, str(error), error.fix)
    answer = _answer(judgement, loaded, function, tree.code, python, root)
    if answer.get("ok"):
        return judgement
    if "unrun" in answer:
        packages = "set the workspace up with an interpreter that has the trainer's packages"
        fix = f"{packages}: {tree.setup_command}"
        return _not_validated(judgement, loaded, str(answer["unrun"]), fix, f" by {python}")
    known = Secrets.of(os.environ, loaded.data)
    place = f" ({answer['where']})" if answer["where"] else ""
    name = function.rpartition(".")[2]
    message = f"the trainer's own {name} refuses the recipe: {known.mask(str(answer['message']))}{place}"
    found = loaded.finding(VALIDATION, Severity.ERROR, _PATH, message)
    return replace(judgement, key_findings=(*judgement.key_findings, found))


def _not_validated(
    judgement: Judgement, loaded: LoadedRecipe, reason: str, fix: str, by: str = ""
) -> Judgement:
    """Add a note on why the trainer's own function was not run."""
    name = str(loaded.recipe.trainer.validate_).rpartition(".")[2]
    message = f"the trainer's own {name} was not run{by}: {Secrets.of(os.environ, loaded.data).mask(reason)}"
    found = loaded.finding(NOT_VALIDATED, Severity.NOTE, _PATH, message, fix)
    return replace(judgement, key_findings=(*judgement.key_findings, found))


def _answer(
    judgement: Judgement, loaded: LoadedRecipe, function: str, code: Path, python: str, root: Path
) -> Mapping[str, Any]:
    recipe = loaded.recipe
    given = list(loaded.settings.values())
    settings = last_settings(run_settings(recipe, given, _CHECKPOINTS, loaded.path.parent, False))
    location = config_location(recipe)
    request: dict[str, Any] = {
        "code": str(code.resolve()),
        "folder": str(location.find_folder(code)),
        "config": location.config,
        "overrides": [argument(one.key, one.value, one.key in judgement.known) for one in settings.values()],
        "function": function,
    }
    if recipe.trainer.arguments is not None:
        values = {one.key: one.value for one in settings.values()}
        request["plain"] = plain_config(recipe, code, values)
    paths = [python_roots.INJECTED, code.resolve()]
    environment = {**os.environ, "NPU_RL_STANDINS": "", "PYTHONDONTWRITEBYTECODE": "1"}
    if not host_facts.devices("npu", root):
        paths[1:1] = [python_roots.NPU, python_roots.APEX]
        environment["NPU_RL_STANDINS"] = "cpu"
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *callers_path([code])])
    try:
        done = run_quietly([python, str(_CHILD), json.dumps(request)], environment, Path(os.sep), _SECONDS)
    except NpuRlError as error:
        return {"unrun": error.why or error.what}
    answers = [line[len(_MARK) :] for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        last = (done.stderr.strip() or f"exit status {done.code}").splitlines()[-1]
        return {"unrun": last}
    answer: Mapping[str, Any] = json.loads(answers[-1])
    return answer
