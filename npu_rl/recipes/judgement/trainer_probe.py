"""The judgement of a recipe's values by its trainer's own code, in the training interpreter.

That is `trainer.validate` of a trainer with its own keys, else what verl does with its configuration before Ray starts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_rl.common import host_facts, python_roots
from npu_rl.common.byte_code import NOWHERE, place
from npu_rl.common.callers_path import callers_path
from npu_rl.common.errors import NpuRlError
from npu_rl.common.masking import Secrets
from npu_rl.common.process import run_quietly
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
from npu_rl.recipes.judgement.key_check import VALUES
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.own_keys import run_settings
from npu_rl.recipes.recipe.trainer_command import argument
from npu_rl.recipes.recipe.trainer_settings import Setting, config_location, last_settings
from npu_rl.recipes.trainer_code.config_location import absolute_search_path
from npu_rl.recipes.trainer_keys.plain_config import plain_config

_CHILD = python_roots.INJECTED / "npu_rl_probe.py"
_MARK = "npu-rl-probed:"
_SECONDS = 1800.0  # for a hang: the imports take 6 to 15 s of CPU, and minutes on a machine that is busy
# accepted values, as verl, vLLM, pydantic and enum write them
_NAME = r"['\"]?[\w.+-]+['\"]?"
_LISTED = re.compile(
    rf"(?:\b(?:one of|should be)|\w:) *[\[({{]?(?P<names>{_NAME}(?:(?:, | or |, or ){_NAME})+)"
)
_WHOLE = "values, by the trainer's own code"
_CHECKPOINTS = Path("/checkpoints")  # a run's folder, which no check needs to exist


class NotProbed(Exception):
    """The trainer's own code can't be run. Has the reason and a fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def probed(
    judgement: Judgement,
    loaded: LoadedRecipe,
    tree: AssembledTree,
    find_python: Callable[[], str],
    root: Path = Path("/"),
) -> Judgement:
    """Add what the trainer's own code raises on the recipe's values; skipped if a key is invalid.

    Args:
        find_python: Returns the training interpreter, or raises NotProbed.
        root: Where /dev is looked for.
    """
    function = loaded.recipe.trainer.validate_
    if any(one.severity is Severity.ERROR for one in judgement.key_findings):
        return judgement
    if loaded.recipe.has_own_keys and function is None:
        return judgement
    known = Secrets.of(os.environ, loaded.data)
    try:
        python = find_python()
    except NotProbed as error:
        return _not_checked(judgement, known.mask(str(error)), error.fix)
    except NpuRlError as error:  # of `train`, which reports it once the recipe is right
        return _not_checked(judgement, known.mask(error.what), "")
    answer = ask(judgement, loaded, tree, python, root)
    if "unrun" in answer:
        fix = "choose an interpreter that has the trainer's packages: " + tree.setup_command
        return _not_checked(judgement, f"{python}: {known.mask(str(answer['unrun']))}", fix)
    # verl validates what it has instantiated before: the first of each message
    raised = list({one["message"]: one for one in reversed(answer["raised"])}.values())[::-1]
    whole = [one for one in raised if not one["key"] and not loaded.recipe.has_own_keys]
    others = [one for one in raised if one not in whole]
    judgement = replace(
        judgement,
        key_findings=(*judgement.key_findings, *_findings(loaded, others, known)),
        # mostly of sizes, which a rehearsal scales down
        plan_findings=(*judgement.plan_findings, *_findings(loaded, whole, known)),
    )
    skipped = {
        f"values of {key}" if key else _WHOLE: known.mask(why) for key, why in answer["skipped"].items()
    }
    return replace(judgement, unchecked={**judgement.unchecked, **skipped})


def _not_checked(judgement: Judgement, reason: str, fix: str) -> Judgement:
    why = f"{reason}; {fix}" if fix else reason
    return replace(judgement, unchecked={**judgement.unchecked, _WHOLE: why})


def _findings(loaded: LoadedRecipe, raised: list[dict[str, str]], known: Secrets) -> Iterator[Finding]:
    for one in raised:
        message = known.mask(one["message"])
        setting = _guilty(loaded, one["key"], one["message"])
        at = f" ({one['where']})" if one["where"] else ""
        path = setting.path if setting else ("trainer", "validate") if loaded.recipe.has_own_keys else ()
        key = setting.key if setting else one["key"]
        text, where = f"the trainer refuses it: {message}{at}", loaded.where(*path)
        fix = _fix(setting, message, where) if setting else ""
        yield Finding(VALUES, Severity.ERROR, path, key, text, fix, where)


def _fix(setting: Setting, message: str, where: str) -> str:
    """Return the edit of a value: to the nearest of the names that a message lists, or to one of them."""
    key, value = dotted(setting.path), str(setting.value)
    listed = _LISTED.search(message)
    names = re.findall(r"[\w.+-]+(?<!\bor)", listed["names"]) if listed else []
    if near := nearest(value, names):
        return f"set {key} to {near} ({where})"
    return f"set {key} to {'one of ' + ', '.join(names) if names else 'another value'} ({where})"


def _guilty(loaded: LoadedRecipe, key: str, message: str) -> Setting | None:
    """Return the setting of a key, or of a section's keys the one that a message names by value or name."""
    settings = loaded.settings
    if key in settings:
        return settings[key]
    inside = [one for name, one in settings.items() if not key or name.startswith(f"{key}.")]
    words = set(re.findall(r"[\w.+-]+", message))

    def score(one: Setting) -> int:
        name = one.key.rpartition(".")[2]
        return 2 * (name in words or one.key in words) + (str(one.value) in words and len(str(one.value)) > 1)

    best = max(inside, key=score, default=None)
    return best if best is not None and score(best) > 0 else None


def ask(
    judgement: Judgement, loaded: LoadedRecipe, tree: AssembledTree, python: str, root: Path
) -> Mapping[str, Any]:
    """Return what the child answers: `raised` and `skipped`, or `unrun` with the reason."""
    code, function = tree.code, loaded.recipe.trainer.validate_
    recipe = loaded.recipe
    given = list(loaded.settings.values())
    if recipe.has_own_keys:
        given = run_settings(recipe, given, _CHECKPOINTS, loaded.path.parent, False)
    settings = last_settings(given)
    location = config_location(recipe)
    known = judgement.known | judgement.groups
    overrides = [argument(one.key, one.value, one.key in known) for one in settings.values()]
    overrides += [f"{key}={option}" for key, option in location.choices.items() if key in judgement.groups]
    places = absolute_search_path(judgement.search_path, code)
    request: dict[str, Any] = {
        "code": str(code.resolve()),
        "folder": str(location.find_folder(code)),
        "config": location.config,
        "overrides": [*([argument("hydra.searchpath", places, True)] if places else []), *overrides],
        "byte_code": place(tree.byte_code) if tree.byte_code else NOWHERE,
    }
    if function is not None:
        request["function"] = function
    if recipe.trainer.arguments is not None:
        request["plain"] = plain_config(recipe, code, {one.key: one.value for one in settings.values()})
    paths = [python_roots.INJECTED, code.resolve()]
    environment = {
        **os.environ,
        "NPU_RL_STANDINS": "",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    if not host_facts.devices("npu", root) and function is not None:
        paths[1:1] = [python_roots.REHEARSAL, python_roots.NPU, python_roots.APEX]
        environment["NPU_RL_STANDINS"] = "cpu"
    environment.pop("PYTHONPYCACHEPREFIX", None)
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *callers_path([code])])
    try:
        done = run_quietly([python, str(_CHILD), json.dumps(request)], environment, Path(os.sep), _SECONDS)
    except NpuRlError as error:
        return {"unrun": f"{error.what}: {error.why}"}
    answers = [line[len(_MARK) :] for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        last = (done.stderr.strip() or f"exit status {done.code}").splitlines()[-1]
        return {"unrun": last}
    answer: Mapping[str, Any] = json.loads(answers[-1])
    return answer
