"""The 256-die recipe of these tests, with keys said otherwise."""

from __future__ import annotations

from pathlib import Path

from npu_rl.plan.plan import Plan, plan_of
from npu_rl.plan.rules.rule import Rule
from npu_rl.recipes.load_recipe import LoadedRecipe, load_recipe
from npu_rl.sizing.machine import Machine

RECIPE = str(Path(__file__).with_name("256-dies.yaml"))


def loaded(*changes: str) -> LoadedRecipe:
    return load_recipe(RECIPE, changes)


def plan(*changes: str, machine: Machine | None = None) -> Plan:
    return plan_of(loaded(*changes), None, machine)


def rule(made: Plan, name: str) -> Rule:
    found = [rule for rule in made.rules if rule.id == name]
    assert len(found) == 1, f"{name}: {[rule.id for rule in made.rules]}"
    return found[0]


def refused(made: Plan) -> list[str]:
    return [rule.id for rule in made.rules if rule.refuses]
