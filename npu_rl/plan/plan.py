"""The plan of a recipe: every rule judged, memory, disk and time counted. Nothing is run, no machine is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import KeyPath
from npu_rl.errors import RecipeError
from npu_rl.memory.memory_by_phase import Memory, memory_of
from npu_rl.plan.disk_and_tokens import Disk, Loading, Tokens, disk_of, loading_of, tokens_of
from npu_rl.plan.rules.adaptation_rules import adaptation_rules
from npu_rl.plan.rules.batch_rules import batch_shares, length_rules
from npu_rl.plan.rules.checkpoint_rules import Checkpoints, checkpoint_rules, checkpoints_of
from npu_rl.plan.rules.conflict_rules import switch_rules
from npu_rl.plan.rules.memory_rules import memory_rules
from npu_rl.plan.rules.parallelism_rules import layout_rules
from npu_rl.plan.rules.path_and_port_rules import place_rules
from npu_rl.plan.rules.rule import Rule
from npu_rl.plan.rules.rule_grounds import grounded
from npu_rl.recipes.key_map import recipe_key_of
from npu_rl.recipes.load_recipe import LoadedRecipe
from npu_rl.sizing.batch_arithmetic import BrokenRule, broken_rules
from npu_rl.sizing.divisibility import check_sizes
from npu_rl.sizing.machine import Machine
from npu_rl.sizing.plan_inputs import Facts, facts_of
from npu_rl.trainer_code.config_tree import ConfigTree


@dataclass(frozen=True)
class Plan:
    """A recipe's plan. fits: whether the sizes of the layout do. memory: None where they don't, or the
    model's shape is not known.
    """

    facts: Facts
    machine: Machine
    rules: tuple[Rule, ...]
    fits: bool
    memory: Memory | None
    disk: Disk | None
    checkpoints: Checkpoints | None
    loading: Loading | None
    tokens: Tokens | None

    @property
    def ok(self) -> bool:
        """Whether the recipe may be run."""
        return not any(rule.refuses for rule in self.rules)

    def findings(self) -> list[Finding]:
        """What speaks against the recipe, with the place to change."""
        unknown = self.facts.unknown
        broken = [_finding(self.facts, rule) for rule in self.rules if not rule.ok]
        return broken if unknown is None else [_unknown_model(self.facts, unknown), *broken]


def plan_of(
    loaded: LoadedRecipe,
    code: Path | None = None,
    machine: Machine | None = None,
    tree: ConfigTree | None = None,
) -> Plan:
    """Plan a recipe; rules on a model whose shape is not known are left out.

    Args:
        loaded: The recipe.
        code: The workspace's code folder; None knows the recipe alone.
        machine: What devices and hosts have; what it leaves open of a die, the recipe says.
        tree: The trainer's configuration files composed, for the trainer's defaults.
    """
    facts, machine = facts_of(loaded, code, tree), machine or Machine()
    die = machine.die or int(loaded.recipe.cluster.die_memory_gb * 1e9)
    machine = replace(machine, die=die)
    rules = _rules(facts)
    fits = facts.layout is None or all(check.ok for check in check_sizes(facts.layout))
    memory = memory_of(facts, die) if fits and facts.shape is not None else None
    if memory is not None and facts.npu:
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
    )


def _rules(facts: Facts) -> list[Rule]:
    """Each rule once: where a layout rule and the trainer's own arithmetic judge the same sizes, the one that fails."""
    found = {
        (one.rule, one.message): one
        for one in broken_rules(facts.values, facts.recipe.megatron, facts.upstream)
    }
    broken = {rule: one for (rule, _), one in reversed(found.items())}
    rules = chain(
        layout_rules(facts),
        batch_shares(facts, broken),
        length_rules(facts),
        switch_rules(facts),
        adaptation_rules(facts),
        place_rules(facts),
    )
    kept = [rule for rule in grounded(rules, facts.upstream) if not (rule.ok and rule.id in broken)]
    refused = {rule.id for rule in kept if not rule.ok}
    return kept + [_of_trainer(one) for one in found.values() if one.rule not in refused]


def _of_trainer(broken: BrokenRule) -> Rule:
    return Rule(broken.rule, False, broken.message, broken.fix, broken.keys)


def _finding(facts: Facts, rule: Rule) -> Finding:
    key = next((key for key in rule.keys if key in facts.given), rule.keys[0] if rule.keys else "")
    path = facts.path(key) or rule.path or _where_to_write(key)
    severity = Severity.ADVICE if rule.advice else Severity.ERROR
    where = facts.loaded.where(*path)
    return Finding(rule.id, severity, path, key, rule.figures, rule.fix, where, rule.certain)


def _where_to_write(trainer_key: str) -> KeyPath:
    """The recipe's key for one of the trainer's that it doesn't set."""
    if not trainer_key:
        return ()
    word = recipe_key_of(trainer_key)
    return ("overrides", trainer_key) if word is None else tuple(word.split("."))


def _unknown_model(facts: Facts, error: RecipeError) -> Finding:
    """A config.json that can't be read is an error. One that is not here may lie on the machines of the run only."""
    path = ("model", "path")
    where, fix = facts.loaded.where(*path), error.hint or ""
    if (facts.loaded.locate(facts.recipe.model.path or "") / "config.json").is_file():
        why = f"{error.what}: {error.why}" if error.why else error.what
        return Finding("model-config", Severity.ERROR, path, "", why, fix, where)
    message = f"{error.what}, so layout and memory are not judged"
    return Finding("model-size-unknown", Severity.ADVICE, path, "", message, fix, where)
