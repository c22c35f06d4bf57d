"""The 256-die recipe of these tests and a script of verl's for vLLM servers, with keys said otherwise."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.recipes.plan.plan import Plan, plan_of
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.stack.manifest.manifest_facts import ManifestFacts, manifest_facts

HERE = Path(__file__).parent
RECIPE, ASCEND, FSDP = (str(HERE / f"{name}.yaml") for name in ("256-dies", "256-dies-ascend", "fsdp"))
SCRIPT = str(HERE / "published" / "verl-qwen3-235b-256k.yaml")
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


def broken(made: Plan) -> dict[str, Rule]:
    """The rules that count, by id."""
    return {rule.id: rule for rule in made.rules if not rule.skipped}


def skipped(made: Plan) -> dict[str, str]:
    """Why rules don't apply, by id."""
    return {rule.id: rule.skipped for rule in made.rules if rule.skipped}


def rule(made: Plan, name: str) -> Rule:
    return broken(made)[name]


def refused(made: Plan) -> list[str]:
    return [rule.id for rule in made.rules if rule.refuses]
