"""The plan of a recipe: rules, memory, disk and time, computed without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.recipes.memory.memory_by_phase import Memory, memory_of
from npu_rl.recipes.plan.disk_and_tokens import Disk, Loading, Tokens, disk_of, loading_of, tokens_of
from npu_rl.recipes.plan.phase_times import phase_times_of
from npu_rl.recipes.plan.rules import (
    batch_rules,
    engine_rules,
    file_rules,
    layout_rules,
    length_rules,
    server_rules,
    training_rules,
)
from npu_rl.recipes.plan.rules.checkpoint_rules import (
    CHECKPOINT_RULES,
    Checkpoints,
    checkpoint_rules,
    checkpoints_of,
)
from npu_rl.recipes.plan.rules.memory_rules import MEMORY_RULES, memory_rules
from npu_rl.recipes.plan.rules.rule import RULES, Rule, judge_rules
from npu_rl.recipes.recipe.key_map import recipe_key_of
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.batch_arithmetic import broken_rules
from npu_rl.recipes.sizing.divisibility import check_sizes
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.sizing.plan_inputs import PlanInputs, facts_of
from npu_rl.recipes.trainer_code.config_tree import ConfigTree

_MODULES = (layout_rules, batch_rules, length_rules, training_rules, engine_rules, server_rules, file_rules)
# The top of the trainer's keys; others are the recipe's own.
_TRAINERS = ("actor_rollout_ref.", "algorithm.", "data.", "reward.", "reward_model.", "trainer.")
RULE_IDS = frozenset({*RULES, *MEMORY_RULES, *CHECKPOINT_RULES})
"""Ids of the rules that a recipe may name in `plan: {except: ...}`, without those of the trainer's own checks."""


@dataclass(frozen=True)
class Plan:
    """The plan of one recipe.

    Attributes:
        machine: Memory and disk that the plan is for.
        rules: Broken rules, and those that would be if they applied to this tree.
        fits: Whether the layout's sizes divide as they have to.
        memory: Memory by phase; None if the layout doesn't fit or the model's shape is not known.
        disk: Checkpoint sizes; None if the model's shape is not known.
        checkpoints: Number and size of the run's checkpoints.
        phase_times: Estimated seconds of the phases of the first step, for the alarm of a hang.
    """

    facts: PlanInputs
    machine: Machine
    rules: tuple[Rule, ...]
    fits: bool
    memory: Memory | None
    disk: Disk | None
    checkpoints: Checkpoints | None
    loading: Loading | None
    tokens: Tokens | None
    phase_times: Mapping[str, float] = field(default_factory=dict)

    @property
    def held(self) -> list[str]:
        """Ids of the rules that hold or have nothing to judge."""
        return sorted(RULE_IDS - {rule.id for rule in self.rules})

    def findings(self) -> list[Finding]:
        """Return a finding for each broken rule, with the recipe's key to change."""
        unknown = self.facts.unknown
        broken = [_finding(self.facts, rule) for rule in self.rules if not rule.skipped]
        return broken if unknown is None else [_model_size_finding(self.facts, unknown), *broken]


def plan_of(
    loaded: LoadedRecipe,
    code: Path | None = None,
    machine: Machine | None = None,
    tree: ConfigTree | None = None,
) -> Plan:
    """Plan a recipe.

    Rules on the model's sizes are left out if its shape is not known.

    Args:
        code: The workspace's code folder; None plans from the recipe alone.
        machine: Memory and disk of the devices and hosts; the recipe gives a device's memory if this does not.
        tree: The trainer's composed configuration files, for its defaults.
    """
    facts, machine = facts_of(loaded, code, tree), machine or Machine()
    die = machine.die or int(loaded.recipe.cluster.die_memory_gb * 1e9)
    machine = replace(machine, die=die)
    rules = _rules(facts)
    fits = facts.layout is None or all(check.ok for check in check_sizes(facts.layout))
    memory = memory_of(facts, die) if fits and facts.shape is not None else None
    if memory is not None and not facts.cpu:
        rules += memory_rules(facts, memory, machine)
    rules += checkpoint_rules(facts, machine)
    return Plan(
        facts,
        machine,
        tuple(rules),
        fits,
        memory,
        disk_of(facts.shape) if facts.shape else None,
        checkpoints_of(facts),
        loading_of(facts, memory),
        tokens_of(facts),
        phase_times_of(facts),
    )


def _rules(facts: PlanInputs) -> list[Rule]:
    """Return each broken rule, and the trainer's own checks of sizes that fail."""
    found = {
        (one.rule, one.message): Rule(one.rule, one.message, one.fix, one.keys)
        for one in broken_rules(facts.values, facts.recipe.megatron, facts.upstream)
    }
    layout, *others = _MODULES
    return [*judge_rules(facts, [layout]), *found.values(), *judge_rules(facts, others)]


def _finding(facts: PlanInputs, rule: Rule) -> Finding:
    key = next((key for key in rule.keys if key in facts.given), rule.keys[0])
    severity = Severity.ADVICE if rule.advice else Severity.ERROR
    path, trainers = facts.path(key) or _recipe_path(key), key.startswith(_TRAINERS)
    return facts.loaded.finding(
        rule.id, severity, path, rule.figures, rule.fix, key=key if trainers else "", certain=rule.certain
    )


def _recipe_path(key: str) -> KeyPath:
    """Return the recipe's key for one that the recipe does not set."""
    word = recipe_key_of(key) or (f"overrides.{key}" if key.startswith(_TRAINERS) else key)
    overridden = word.removeprefix("overrides.")
    return ("overrides", overridden) if overridden != word else tuple(word.split("."))


def _model_size_finding(facts: PlanInputs, error: RecipeError) -> Finding:
    """Return an error for an invalid config.json, or advice for a missing one, which the run's machines may have."""
    path, fix = ("model", "path"), error.hint or ""
    if (facts.loaded.locate(facts.recipe.model.path or "") / "config.json").is_file():
        why = f"{error.what}: {error.why}" if error.why else error.what
        return facts.loaded.finding("model-config", Severity.ERROR, path, why, fix)
    message = f"{error.what}, so layout and memory are not judged"
    return facts.loaded.finding("model-size-unknown", Severity.ADVICE, path, message, fix)
