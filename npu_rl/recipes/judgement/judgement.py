"""All findings on a recipe, and the tree that it was checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.stack.manifest.manifest_facts import ManifestFacts


@dataclass(frozen=True)
class AssembledTree:
    """The code tree of a workspace.

    Attributes:
        manifest: Name of the manifest that it was set up from.
        stack: The manifest facts in the workspace's lock; a recipe is also judged if this extends its manifest.
        setup_command: Sets the workspace up with another interpreter, for the trainer's own checks.
        byte_code: The key of the byte code of a proven tree; empty for none.
    """

    code: Path
    manifest: str
    stack: ManifestFacts | None = None
    setup_command: str = ""
    byte_code: str = ""


@dataclass(frozen=True)
class CheckedRecipe:
    """The result of `recipes check`, and of a command that refuses its recipe.

    Attributes:
        code: The tree that it was checked against; None without a workspace.
        unchecked: What can't be checked here, and why.
    """

    recipe: str
    code: Path | None
    findings: tuple[Finding, ...]
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether `train` accepts the recipe."""
        return not any(one.severity is Severity.ERROR for one in self.findings)


@dataclass(frozen=True)
class Judgement:
    """All findings on a recipe, and their basis.

    Attributes:
        key_findings: Findings on keys, values and files; they hold for any size of the recipe.
        plan_findings: Findings on layout, batches and memory; a rehearsal scales these sizes down.
        recipe: The recipe.
        machine: Memory and disk of the devices and hosts.
        plan: The plan, including the rules that hold; None where the trainer's keys are its own, which nothing counts.
        known: Keys of the trainer's configuration files; empty without a workspace.
        search_path: `hydra.searchpath` of the trainer's configuration.
        accepted_faults: Reason by id, for open faults of the tree that the recipe accepts.
        groups: The groups in the defaults lists of the trainer's configuration.
        overruled: Reason by rule id, for broken rules that the recipe overrules.
        unchecked: What can't be checked here, and why.
        not_here: Recipe key and value of each model, checkpoint and data path that is not on this machine; empty for a
            run or rehearsal here.
    """

    key_findings: tuple[Finding, ...]
    plan_findings: tuple[Finding, ...]
    recipe: Recipe
    machine: Machine
    plan: Plan | None
    known: frozenset[str]
    overruled: Mapping[str, str] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)
    search_path: tuple[str, ...] = ()
    accepted_faults: Mapping[str, str] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    not_here: Mapping[str, str] = field(default_factory=dict)

    def checked(self, tree: AssembledTree | None) -> CheckedRecipe:
        """Return the result for programs. tree: The one that the recipe was judged with."""
        absent = {key: f"{path} is not on this machine" for key, path in self.not_here.items()}
        code = None if tree is None else tree.code
        return CheckedRecipe(self.recipe.name, code, self.findings, {**self.unchecked, **absent})

    @property
    def absent_lines(self) -> tuple[str, ...]:
        """Lines that name the paths that are not on this machine; empty without any."""
        named = tuple(f"  {key}: {shown(given)}" for key, given in self.not_here.items())
        return ("Not on this machine, so not checked:", *named) if named else ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: errors, then advice, then notes; those of one key stand together."""
        found = [*self.key_findings, *self.plan_findings]
        order = {key: place for place, key in reversed(list(enumerate(one.key for one in found)))}
        found.sort(key=lambda one: order[one.key])
        return tuple(one for severity in Severity for one in found if one.severity is severity)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make `train` refuse the recipe."""
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)

    @property
    def ok(self) -> bool:
        """Return whether `train` accepts the recipe."""
        return not self.errors
