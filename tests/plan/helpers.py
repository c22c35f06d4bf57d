"""The 256-die recipe of these tests, with keys said otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.recipes.plan.plan import Plan, plan_of
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.stack.manifest.manifest_facts import ManifestFacts, manifest_facts

HERE = Path(__file__).parent
RECIPE, ASCEND, FSDP = (str(HERE / f"{name}.yaml") for name in ("256-dies", "256-dies-ascend", "fsdp"))
MODELS = HERE / "models"


def loaded(*changes: str, recipe: str = RECIPE) -> LoadedRecipe:
    """The recipe with changes. Its manifest, which they leave alone, is read once, which takes 14 of a plan's 36 ms."""
    made = load_recipe(recipe, changes)
    made.__dict__["manifest_facts"] = _manifest(made.manifest)
    return made


@cache
def _manifest(name: str) -> ManifestFacts:
    return manifest_facts(name)


def plan(
    *changes: str, recipe: str = RECIPE, code: Path | None = None, machine: Machine | None = None
) -> Plan:
    return plan_of(loaded(*changes, recipe=recipe), code, machine)


def config(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a model, changed."""
    return {**json.loads((MODELS / name / "config.json").read_text("utf-8")), **changes}


def model(folder: Path, name: str, **changes: Any) -> str:
    """The change of a recipe that names a model in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(name, **changes)))
    return f"model.path={folder}"


def rule(made: Plan, name: str) -> Rule:
    found = [rule for rule in made.rules if rule.id == name]
    assert len(found) == 1, f"{name}: {[rule.id for rule in made.rules]}"
    return found[0]


def refused(made: Plan) -> list[str]:
    return [rule.id for rule in made.rules if rule.refuses]


class Broken(NamedTuple):
    """A rule that changes of the recipe break.

    Attributes:
        figures: As in `shows`.
        fix: KEY=VALUE that the fix has to name and that makes the rule hold; else words of the fix.
        cited: The end of the figures: file:line of the code that asks for it, in a tree.
    """

    name: str
    changes: Sequence[str]
    figures: str
    fix: str
    cited: str = ""


_VALUES = re.compile(
    r"(?<!\w)\d+(?:\.\d+)?|\b(?:true|false|none|full|selective|uniform|block|(?:on|off)(?=[,;:]| \(|$))\b",
    re.I,
)


def shows(found: Rule, figures: str) -> bool:
    """Whether a rule's figures have these numbers and values side by side; or these words, where there is no number."""
    return f" {figures} " in f" {' '.join(_VALUES.findall(found.figures))} " or figures in found.figures


def broken(row: Broken, made: Callable[..., Plan]) -> Rule:
    """The rule of a row, whose fix has been tried.

    made: The plan of a recipe by its changes.
    """
    found = rule(made(*row.changes), row.name)
    assert not found.ok and shows(found, row.figures)
    assert not row.cited or found.figures.endswith(f"({row.cited})")
    key, is_change, value = row.fix.partition("=")
    if not is_change:
        assert row.fix in found.fix
        return found
    assert re.search(rf"set {re.escape(key)} to {re.escape(value)}(?= or |,|:| and|$)", found.fix)
    others = [change for change in row.changes if not change.startswith(f"{key}=")]
    assert all(one.ok for one in made(*others, row.fix).rules if one.id == row.name)
    return found
