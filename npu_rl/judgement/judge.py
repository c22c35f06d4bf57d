"""The one judgement of a recipe that `recipes check`, `plan`, `train --dry-run` and `train` share."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import KeyPath
from npu_rl.judgement.environment_check import RULES as OF_ENVIRONMENT
from npu_rl.judgement.environment_check import environment_findings
from npu_rl.judgement.named_files import RULES as OF_FILES
from npu_rl.judgement.named_files import named_file_findings
from npu_rl.judgement.overruling import overrule
from npu_rl.plan.plan import Plan, plan_of
from npu_rl.plan.rules.rule_grounds import GROUNDS
from npu_rl.recipes.load_recipe import LoadedRecipe
from npu_rl.sizing.machine import Machine
from npu_rl.trainer_keys.key_check import check_keys, read_trainer
from npu_rl.trainer_keys.key_resolver import Readers

_BAD_VALUES = ("invalid-value", "unknown-key", "environment-value", "model-path", "model-checkpoint")
_ROLLOUT_SIZE = ("env", "VLLM_DP_SIZE")
_OF_ROLLOUT_SIZE = ("rollout-", "memory-")  # rules that count with it


@dataclass(frozen=True)
class AssembledTree:
    """A workspace as recipes see it.

    Attributes:
        code: Its code folder.
        manifest: The name of the manifest it was set up from.
        named: That manifest as a recipe has to name it: a bundled one's name, or a path.
    """

    code: Path
    manifest: str
    named: str = ""


@dataclass(frozen=True)
class Judgement:
    """What speaks against a recipe, and what it was judged by.

    Attributes:
        of_keys: Findings on keys, values and files, which hold whatever sizes the recipe has.
        of_plan: Findings on layout, batches and memory; a rehearsal scales these sizes down.
        plan: The plan, with the rules that hold, too.
        known: The keys of the trainer's configuration files, empty without a workspace.
        overruled: The rules that don't hold and that the recipe overrules, by id, with the reasons.
        unchecked: Sections of the trainer's configuration whose keys nothing here can judge, and why.
    """

    of_keys: tuple[Finding, ...]
    of_plan: tuple[Finding, ...]
    plan: Plan
    known: frozenset[str]
    overruled: Mapping[str, str] = field(default_factory=dict)
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them: errors, then advice, then notes."""
        found = [*self.of_keys, *self.of_plan]
        return tuple(one for severity in Severity for one in found if one.severity is severity)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)

    @property
    def ok(self) -> bool:
        """Whether `train` would begin."""
        return not self.errors


def judge(
    loaded: LoadedRecipe,
    tree: AssembledTree | None = None,
    machine: Machine | None = None,
    *,
    here: bool = False,
) -> Judgement:
    """Judge a recipe: keys, values, files, layout, batches, memory, and whether the tree is the one it is for.

    Args:
        loaded: The recipe.
        tree: The workspace's tree; None judges the recipe alone. One of another manifest is told, and not read.
        machine: What devices and hosts have.
        here: Whether this machine will run it, so that it has to have the model and the data.
    """
    with _without_collections():
        return _judge(loaded, tree, machine, here)


def _judge(
    loaded: LoadedRecipe, tree: AssembledTree | None, machine: Machine | None, here: bool
) -> Judgement:
    stranger = _stranger(loaded, tree)
    code = None if tree is None or stranger else tree.code
    trainer = read_trainer(loaded.recipe, code)
    config = trainer.tree if isinstance(trainer, Readers) else None
    plan = plan_of(loaded, code, machine, config)
    of_keys = [
        *stranger,
        *check_keys(loaded, trainer, code),
        *environment_findings(loaded, plan.facts.env, code),
        *named_file_findings(loaded, code, here),
    ]
    of_plan = _without(plan.findings(), of_keys)
    found = [*of_keys, *of_plan]
    ids = {
        *GROUNDS,
        *OF_ENVIRONMENT,
        *OF_FILES,
        *(rule.id for rule in plan.rules),
        *(one.rule for one in found),
    }
    exceptions = overrule(loaded, found, ids)
    return Judgement(
        (*exceptions.left(of_keys), *exceptions.told),
        exceptions.left(of_plan),
        plan,
        frozenset(config.entries) if config else frozenset(),
        exceptions.reasons,
        trainer.unchecked if isinstance(trainer, Readers) else {},
    )


@contextmanager
def _without_collections() -> Iterator[None]:
    """Hold Python's garbage collector: it would walk the syntax trees of a hundred files, a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _stranger(loaded: LoadedRecipe, tree: AssembledTree | None) -> list[Finding]:
    if tree is None:
        return []
    wanted = loaded.loaded_manifest.manifest.name
    if wanted == tree.manifest:
        return []
    path: KeyPath = ("manifest",)
    return [
        Finding(
            "workspace-manifest",
            Severity.ERROR,
            path,
            "",
            f"the recipe is for {wanted}, and the workspace {tree.code.parent} is {tree.manifest}",
            f"name a workspace of {wanted} (npu-rl setup --manifest {loaded.recipe.manifest} --workspace DIR), "
            f"or set manifest to {tree.named or tree.manifest}",
            loaded.where(*path),
        )
    ]


def _without(found: Iterable[Finding], known: Iterable[Finding]) -> list[Finding]:
    """Leave out what follows from a value that is refused already: one fault is one line."""
    bad = {one.trainer_key or one.path for one in known if one.rule in _BAD_VALUES}
    follow = _OF_ROLLOUT_SIZE if _ROLLOUT_SIZE in bad else ()
    return [
        one
        for one in found
        if not {one.trainer_key or one.path, one.path} & bad and not one.rule.startswith(follow)
    ]
