"""Check that each enabled adaptation has its patch in the tree, and that the shell's switches are valid.

A switch that nothing reads changes nothing, without a message: the run would compute what the adaptation is to prevent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, shown
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.trainer_code.adaptation_switches import (
    given_switches,
    known_switches,
    switches_without_patch,
)

RULE = "adaptation-without-patch"


def adaptation_findings(
    loaded: LoadedRecipe,
    environment: Mapping[str, str],
    code: Path | None,
    shell: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Return an error for each adaptation that is enabled without its patch, or whose shell variable is invalid.

    Args:
        environment: The manifest's variables with the recipe's over them.
        code: The workspace's code folder; nothing is found without it.
        shell: The variables that a run inherits.
    """
    given = given_switches(loaded.recipe.adaptations, environment, shell)
    switched_on = {slug: one.path for slug, one in given.items() if one.on}
    if code is None:
        return []
    invalid = {slug for slug, one in given.items() if one.on is None and not one.path}
    switches = known_switches(code, invalid) if invalid else {}
    found = [_invalid(slug, shell) for slug in sorted(invalid & switches.keys())]
    if not switched_on:
        return found

    known = known_switches(code).keys() & switched_on.keys()  # unknown names are reported elsewhere
    missing = sorted(switches_without_patch(code, known))
    return [*found, *(_finding(loaded, slug, switched_on[slug]) for slug in missing)]


def _variable(slug: str) -> str:
    return "NPU_RL_" + slug.upper().replace("-", "_")


def _invalid(slug: str, shell: Mapping[str, str]) -> Finding:
    name = _variable(slug)
    message = f"{name}={shown(shell[name])} is neither 1 nor 0 (npu_rl_runtime/switches.py)"
    fix, where = f"unset {name}, or set adaptations.{slug}", f"{name} of the shell"
    return Finding("environment-value", Severity.ERROR, (), "", message, fix, where)


def _finding(loaded: LoadedRecipe, slug: str, path: KeyPath) -> Finding:
    variable = _variable(slug)
    by, fix, where = "", f"remove adaptations.{slug}", loaded.where(*path)
    if path[:1] == ("env",):
        own = variable in loaded.recipe.env
        by = "" if own else f" by the manifest {loaded.stack_name}"
        fix = f"remove env.{variable}" if own else f"set env.{variable} to 0"
    elif not path:
        fix, where = f"unset {variable}", f"{variable} of the shell"
    message = f"{slug} is switched on{by}, and no file of the tree calls it: its patch is not in the tree"
    return Finding(RULE, Severity.ERROR, path, "", message, fix, where)
