"""The one judgement of a recipe that `recipes check`, `plan`, `train --dry-run` and `train` share."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from npu_rl.trainer_code.answer_cache import AnswerCache
from npu_rl.trainer_keys.key_check import check_keys, read_trainer
from npu_rl.trainer_keys.key_resolver import KeyResolver

_HEAD = "cluster-address"
_BAD_VALUES = ("invalid-value", "unknown-key", "environment-value", "model-path", "model-checkpoint")
# What follows from a refused value or a broken rule: parts of its key or its id -> the beginnings of the rules' ids.
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "env.VLLM_DP_SIZE": ("rollout-", "memory-", "kv-cache-"),
    ".recompute_": ("recompute-", "memory-update"),
    ".activations_checkpoint_": ("recompute-", "memory-update"),
}
_SAYS_WHY = ("megatron-needs-vllm",)
_FOLLOWS_FROM: Mapping[str, tuple[str, ...]] = {
    "rollout-dp-size": ("rollout-parallel-", "rollout-experts-", "memory-", "kv-cache-"),
    "mini-batch-within-batch": ("mini-batch-divisible-by-dp", "on-policy-needs-one-step"),
    "recompute-settings": ("memory-update",),
    "recompute-uniform-layers": ("memory-update",),
    "transformer-overrides-refused": ("recompute-",),
}


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
        here: Whether this machine will run it, so that it has to have the model and the data, and to know Ray's head.
    """
    with _without_collections():
        return _judge(loaded, tree, machine, here)


def _judge(
    loaded: LoadedRecipe, tree: AssembledTree | None, machine: Machine | None, here: bool
) -> Judgement:
    stranger = _stranger(loaded, tree)
    code = None if tree is None or stranger else tree.code
    answers = None if code is None else AnswerCache(code)
    trainer = read_trainer(loaded.recipe, code, answers)
    config = trainer.tree if isinstance(trainer, KeyResolver) else None
    plan = plan_of(loaded, code, machine, config)
    of_keys = [
        *stranger,
        *check_keys(loaded, trainer, code),
        *environment_findings(loaded, plan.facts.env, code, answers),
        *named_file_findings(loaded, code, here),
        *(_without_head(loaded) if here else ()),
    ]
    if answers is not None:
        answers.save()
    of_keys = _without_vaguer(of_keys, plan.findings())
    of_plan = _without(plan.findings(), of_keys, loaded.recipe.plan.except_)
    plan = _stepped_aside(plan, of_plan)
    found = [*of_keys, *of_plan]
    ids = {
        *GROUNDS,
        *OF_ENVIRONMENT,
        *OF_FILES,
        _HEAD,
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
        trainer.unchecked if isinstance(trainer, KeyResolver) else {},
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
    wanted = loaded.manifest_facts.name
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


def _without_head(loaded: LoadedRecipe) -> list[Finding]:
    """Several machines need a Ray that was started on all of them. Its address is known when the run begins."""
    cluster, path = loaded.recipe.cluster, ("cluster", "address")
    if cluster.nodes == 1 or cluster.address or loaded.recipe.device != "npu":
        return []
    return [
        Finding(
            _HEAD,
            Severity.ERROR,
            path,
            "",
            f"{cluster.nodes} machines, and no address of a Ray head",
            "set cluster.address to HOST:PORT of Ray's head, such as 10.0.0.1:6766 (head.sh and worker.sh of --dry-run "
            "start Ray there)",
            loaded.where(*path),
        )
    ]


def _stepped_aside(plan: Plan, told: Iterable[Finding]) -> Plan:
    """The plan with the rules that follow from another finding among those that don't apply."""
    left = {one.rule for one in told}
    rules = [
        rule if rule.ok or rule.id in left else replace(rule, ok=True, skipped="follows from another finding")
        for rule in plan.rules
    ]
    return replace(plan, rules=tuple(rules))


def _without_vaguer(of_keys: Sequence[Finding], of_plan: Sequence[Finding]) -> list[Finding]:
    """Leave out that a value is none of the accepted ones where a rule of the plan says why."""
    said = {one.trainer_key for one in of_plan if one.rule in _SAYS_WHY and one.severity is Severity.ERROR}
    return [one for one in of_keys if one.rule != "invalid-value" or one.trainer_key not in said]


def _without(found: Sequence[Finding], known: Iterable[Finding], excepted: Collection[str]) -> list[Finding]:
    """Leave out what follows from a value or a rule that is refused already: one fault is one line.

    excepted: rules that the recipe overrules, so that what follows from them counts.
    """
    refused = [one for one in known if one.rule in _BAD_VALUES]
    bad = {one.trainer_key or one.path for one in refused}
    follow = [
        rule
        for one in refused
        for part, rules in _FOLLOWS.items()
        if part in one.key or part in one.trainer_key
        for rule in rules
    ]
    for one in found:
        if one.severity is Severity.ERROR and one.rule not in excepted:
            follow += _FOLLOWS_FROM.get(one.rule, ())
    return [
        one
        for one in found
        if not {one.trainer_key or one.path, one.path} & bad and not one.rule.startswith(tuple(follow))
    ]
