"""The plan of a recipe: every rule judged, memory, disk and time counted. Nothing is run, no machine is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from npu_rl.recipes.check import Finding
from npu_rl.recipes.load import LoadedRecipe
from npu_rl.recipes.plan.amounts import Disk, Loading, Tokens, disk_of, loading_of, tokens_of
from npu_rl.recipes.plan.batch_shares import batch_shares, length_rules
from npu_rl.recipes.plan.facts import Facts, facts_of
from npu_rl.recipes.plan.layout_rules import layout_rules
from npu_rl.recipes.plan.memory import Memory, memory_of
from npu_rl.recipes.plan.memory_rules import Machine, memory_rules
from npu_rl.recipes.plan.place_rules import place_rules
from npu_rl.recipes.plan.rule import Rule
from npu_rl.recipes.plan.switch_rules import switch_rules

__all__ = ["Machine", "Plan", "plan_of", "refusals"]


@dataclass(frozen=True)
class Plan:
    """A recipe's plan. fits: whether the sizes of the layout do. memory: None where they don't, or on another
    backend than Megatron.
    """

    facts: Facts
    machine: Machine
    rules: tuple[Rule, ...]
    fits: bool
    memory: Memory | None
    disk: Disk | None
    loading: Loading | None
    tokens: Tokens | None

    @property
    def ok(self) -> bool:
        """Whether the recipe may be run."""
        return not any(rule.refuses for rule in self.rules)

    def findings(self) -> list[Finding]:
        """What refuses the recipe, with the place to change."""
        return [_finding(self.facts, rule) for rule in self.rules if rule.refuses]


def plan_of(loaded: LoadedRecipe, code: Path | None = None, machine: Machine | None = None) -> Plan:
    """Plan a recipe. code: the workspace's code folder, for the trainer's defaults; None knows the recipe alone.

    Raises RecipeError if nothing says how large its model is.
    """
    facts = facts_of(loaded, code)
    if facts.unknown is not None:
        raise facts.unknown
    return _plan(facts, machine or Machine())


def refusals(loaded: LoadedRecipe, code: Path | None = None, machine: Machine | None = None) -> list[Finding]:
    """What `plan` refuses and `check_recipe` does not, for `train`, which asks both. Rules on a model whose shape
    nothing says are left out."""
    plan = _plan(facts_of(loaded, code), machine or Machine())
    return [_finding(plan.facts, rule) for rule in plan.rules if rule.refuses and not rule.checked]


def _plan(facts: Facts, machine: Machine) -> Plan:
    rules = [*_rules(facts)]
    fits = not any(rule.refuses for rule in layout_rules(facts))
    memory = memory_of(facts) if fits else None
    if memory is not None and facts.npu:
        rules += memory_rules(facts, memory, machine)
    return Plan(
        facts,
        machine,
        tuple(rules),
        fits,
        memory,
        disk_of(facts.shape) if facts.shape else None,
        loading_of(facts, memory),
        tokens_of(facts),
    )


def _rules(facts: Facts) -> Iterator[Rule]:
    return chain(
        layout_rules(facts), batch_shares(facts), length_rules(facts), switch_rules(facts), place_rules(facts)
    )


def _finding(facts: Facts, rule: Rule) -> Finding:
    key = next((key for key in rule.keys if key in facts.given), rule.keys[0] if rule.keys else "")
    path = facts.path(key) or rule.path
    message = f"{rule.name}: {rule.said}" + (f"; {rule.change}" if rule.change else "")
    return Finding(path, key, message, facts.loaded.where(*path), "plan")
