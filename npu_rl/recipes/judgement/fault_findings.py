"""Refusal of trees with a known fault that makes results wrong, unless `faults.accept` names the fault.

A run on devices is refused; `npu-rl faults` lists the others. The reason is printed wherever the recipe is judged, and
recorded with the run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.recipes.faults.fault import known_faults
from npu_rl.recipes.faults.verdict import Verdict, faults_line, judge_tree
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.sizing.plan_inputs import run_environment
from npu_rl.recipes.trainer_code.adaptation_switches import given_switches

RULE = "known-fault"


@dataclass(frozen=True)
class FaultJudgement:
    """The effect of the tree's known faults on a recipe.

    Attributes:
        key_findings: Errors and notes on `faults.accept`.
        tree_findings: Open faults for which a run on devices is refused.
        accepted: Reason by id, for open faults that the recipe accepts.
    """

    key_findings: tuple[Finding, ...] = ()
    tree_findings: tuple[Finding, ...] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)


def judge_faults(loaded: LoadedRecipe, code: Path | None, environment: Mapping[str, str]) -> FaultJudgement:
    """Judge a recipe by the known faults of the tree.

    Args:
        code: The workspace's code folder; None checks only the ids that the recipe accepts.
        environment: The environment of a run, which may switch adaptations off.
    """
    wanted = loaded.recipe.faults.accept
    on_devices = loaded.recipe.device != "cpu"
    if (code is None and not wanted) or not (wanted or on_devices):
        return FaultJudgement()
    faults = known_faults()
    verdicts = judge_tree(code, faults, switched_off(loaded, environment)) if code is not None else ()
    strategy = strategy_of(loaded)
    open_ones = (one for one in verdicts if one.is_open_wrong_result)
    wrong = {one.fault.id: one for one in open_ones if one.fault.concerns(strategy)}
    known = {fault.id for fault in faults}
    notes = tuple(
        _acceptance(loaded, name, reason, wrong.get(name), known, code is not None)
        for name, reason in wanted.items()
    )
    refused = [one for name, one in wrong.items() if on_devices and name not in wanted]
    return FaultJudgement(
        tuple(one for one in notes if one is not None),
        tuple(_refusal(loaded, one) for one in refused),
        {name: reason for name, reason in wanted.items() if name in wrong},
    )


def strategy_of(loaded: LoadedRecipe) -> str | None:
    """Return the `actor.strategy` that determines which faults apply.

    None if the trainer's keys are its own: which workers it starts is unknown then, so every fault counts.
    """
    return None if loaded.recipe.has_own_keys else loaded.recipe.actor.strategy


def strategies_of(manifests: Collection[str]) -> set[str | None]:
    """Return `strategy_of` the bundled recipes whose text names one of these manifests."""
    line = re.compile(rf"^manifest: ({'|'.join(map(re.escape, manifests))})$", re.MULTILINE)
    texts = {name: path.read_text(encoding="utf-8") for name, path in bundled_recipes().items()}
    return {strategy_of(load_recipe(name)) for name, text in texts.items() if line.search(text)}


def switched_off(loaded: LoadedRecipe, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the adaptations that the recipe, the environment of a run or the shell switches off."""
    given = given_switches(loaded.recipe.adaptations, environment)
    return frozenset(slug for slug, one in given.items() if one.on is False)


def _refusal(loaded: LoadedRecipe, found: Verdict) -> Finding:
    fault = found.fault
    path: KeyPath
    if found.by:
        message = f"{fault.title}: {found.by} ends it, and adaptations.{fault.switch} is off ({found.where})"
        fix, path = f"set adaptations.{fault.switch} to true", ("adaptations", fault.switch)
    else:
        message = f"{fault.title}: the tree has it ({found.where}); {fault.effect}"
        patches = [ending.by for ending in fault.ended if ending.patches]
        fix = f"apply {patches[0]}" if patches else "set up a tree that does not have it"
        path = ("manifest",)
    fix = f"{fix}, or accept it: faults.accept.{fault.id}=REASON"
    return loaded.finding(RULE, Severity.ERROR, path, f"{fault.id}: {message}", fix)


def _acceptance(
    loaded: LoadedRecipe, name: str, reason: str, found: Verdict | None, known: set[str], judged: bool
) -> Finding | None:
    path: KeyPath = ("faults", "accept", name)
    if name not in known:
        message = f"unknown fault {name!r}{did_you_mean(name, sorted(known))}"
        fix = "npu-rl faults lists their ids"
        return loaded.finding("unknown-fault", Severity.ERROR, path, message, fix)
    if found is not None:
        message = f"accepted: {name}: {reason} (the fault: {found.fault.title})"
        return loaded.finding("accepted-fault", Severity.NOTE, path, message)
    if judged:
        message = f"{name} is not open with a wrong result for this recipe, so there is nothing to accept"
        fix = f"remove faults.accept.{name}"
        return loaded.finding("accepted-without-effect", Severity.NOTE, path, message, fix)
    return None


def faults_line_of(loaded: LoadedRecipe, code: Path) -> str:
    """Return the line on the known faults of a tree under a recipe's switches and strategy."""
    return faults_line(code, switched_off(loaded, run_environment(loaded)), strategy_of(loaded))
