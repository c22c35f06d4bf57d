"""Check that each adaptation which is switched on has its patch in the tree.

A switch that nothing reads changes nothing, without a message: the run would compute what the adaptation is to prevent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import KeyPath
from npu_rl.recipes.load_recipe import LoadedRecipe
from npu_rl.trainer_code.adaptation_switches import known_switches, switches_without_patch
from npu_rl.trainer_code.answer_cache import AnswerCache

RULE = "adaptation-without-patch"

_PREFIX = "NPU_RL_"
_ON = frozenset({"1", "true", "yes", "on"})


def adaptation_findings(
    loaded: LoadedRecipe,
    environment: Mapping[str, str],
    code: Path | None,
    answers: AnswerCache | None = None,
    shell: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Return an error for each adaptation that is switched on without its patch.

    Args:
        environment: The manifest's variables with the recipe's over them.
        code: The workspace's code folder; nothing is found without it.
        answers: What was found in that folder before.
        shell: The variables that a run inherits.
    """
    switched_on = _switched_on(loaded, environment, shell)
    if code is None or not switched_on:
        return []

    def find() -> list[str]:
        known = known_switches(code).keys() & switched_on.keys()  # unknown names are reported elsewhere
        return sorted(switches_without_patch(code, known))

    def from_json(data: Any) -> list[str]:
        return [str(slug) for slug in data]

    missing = (
        find() if answers is None else answers.answer([RULE, sorted(switched_on)], find, from_json, from_json)
    )
    return [_finding(loaded, slug, switched_on[slug]) for slug in missing]


def _switched_on(
    loaded: LoadedRecipe, environment: Mapping[str, str], shell: Mapping[str, str]
) -> dict[str, KeyPath]:
    """Return the adaptations that are on, with the key of each; for a variable of the shell, an empty one."""
    given = loaded.recipe.adaptations
    found: dict[str, KeyPath] = {}
    for name, value in {**shell, **environment}.items():
        slug = name.removeprefix(_PREFIX).lower().replace("_", "-")
        if name.startswith(_PREFIX) and value.strip().lower() in _ON and slug not in given:
            found[slug] = ("env", name) if name in environment else ()
    return {**found, **{slug: ("adaptations", slug) for slug, on in given.items() if on}}


def _finding(loaded: LoadedRecipe, slug: str, path: KeyPath) -> Finding:
    variable = _PREFIX + slug.upper().replace("-", "_")
    by, fix, where = "", f"remove adaptations.{slug}", loaded.where(*path)
    if path[:1] == ("env",):
        own = variable in loaded.recipe.env
        by = "" if own else f" by the manifest {loaded.recipe.manifest}"
        fix = f"remove env.{variable}" if own else f"set env.{variable} to 0"
    elif not path:
        fix, where = f"unset {variable}", f"{variable} of the shell"
    message = f"{slug} is switched on{by}, and no file of the tree calls it: its patch is not in the tree"
    return Finding(RULE, Severity.ERROR, path, "", message, fix, where)
