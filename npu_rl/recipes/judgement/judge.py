"""The judgement of a recipe that `recipes check`, `plan`, `train --dry-run` and `train` share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.environment.environment_check import RULES as ENVIRONMENT_RULES
from npu_rl.recipes.environment.environment_check import environment_findings
from npu_rl.recipes.judgement.adaptation_check import RULE as ADAPTATION_RULE
from npu_rl.recipes.judgement.adaptation_check import adaptation_findings
from npu_rl.recipes.judgement.fault_findings import RULE as FAULT_RULE
from npu_rl.recipes.judgement.fault_findings import judge_faults
from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
from npu_rl.recipes.judgement.key_check import check_keys, read_trainer
from npu_rl.recipes.judgement.missing_files import absent_paths
from npu_rl.recipes.judgement.named_files import RULES as FILE_RULES
from npu_rl.recipes.judgement.named_files import named_file_findings
from npu_rl.recipes.judgement.one_cause import merge_by_cause
from npu_rl.recipes.judgement.overruling import overrule
from npu_rl.recipes.judgement.prepared_data import RULES as DATA_RULES
from npu_rl.recipes.judgement.prepared_data import prepared_data_findings
from npu_rl.recipes.judgement.recipe_weights import with_weights, without_missing_files
from npu_rl.recipes.plan.plan import RULE_IDS, Plan, plan_of
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.sizing.plan_inputs import run_environment
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver

MANIFEST_MISMATCH = "workspace-manifest"
_CLUSTER_ADDRESS = "cluster-address"
_VALUE_RULES = (
    *("invalid-value", "unknown-key", "environment-value"),
    *("model-path", "weights-architecture", "model-checkpoint"),
)
# What else fails because of an invalid value: part of its key -> prefixes of the ids of the rules that fail with it.
_IMPLIED_BY_KEY: Mapping[str, tuple[str, ...]] = {
    "env.VLLM_DP_SIZE": ("rollout-", "memory-", "kv-cache-"),
    ".recompute_": ("recompute-", "memory-update"),
    ".activations_checkpoint_": ("recompute-", "memory-update"),
}
_EXPLAINING_RULES = ("megatron-needs-vllm",)  # rules that say why a value is not an accepted one
# Rules on the sizes of the model, which are those of model.path.
_OF_THE_MODEL = (
    *(
        "memory-",
        "kv-cache-",
        "pipeline-layers",
        "mla-",
        "clean-model-config",
        "recompute-",
        "quantized-model",
    ),
    *("tensor-parallel-divides-", "rollout-tensor-parallel-", "expert-parallel-divides-experts"),
    *(
        "rollout-parallel-divides-experts",
        "rollout-experts-",
        "checkpoint-disk",
        "model-positions",
        "router-",
    ),
)
# What else fails because of a broken rule: its id -> prefixes of the ids of the rules that fail with it.
_IMPLIED_BY_RULE: Mapping[str, tuple[str, ...]] = {
    "weights-architecture": _OF_THE_MODEL,
    "model-parallel-divides-world": (
        "expert-parallel-divides-world",
        "pipeline-layers",
        "batch-divisible-by-dp",
        "mini-batch-divisible-by-dp",
        "micro-batch-divides-share",
        "memory-",
    ),
    "mla-tensor-parallel": ("tensor-parallel-divides-heads", "model-parallel-divides-world"),
    "expert-parallel-divides-experts": ("expert-parallel-divides-world", "rollout-experts-match-training"),
    # First of all a size has to fit the model: no number of devices or replicas mends it.
    "rollout-tensor-parallel-divides-heads": ("rollout-dp-size", "rollout-parallel-divides-world"),
    "rollout-parallel-divides-world": (
        "rollout-parallel-divides-experts",
        "rollout-experts-",
        "batch-divisible-by-rollout-dp",
        "graph-batch-sizes",
        "max-sequences-",
        "memory-",
        "kv-cache-",
    ),
    "rollout-dp-size": ("rollout-parallel-", "rollout-experts-", "memory-", "kv-cache-"),
    "responses-per-prompt": ("batch-", "mini-batch-", "memory-", "kv-cache-"),
    "batch-divisible-by-dp": ("micro-batch-divides-share",),
    "mini-batch-within-batch": ("mini-batch-divisible-by-dp", "on-policy-needs-one-step"),
    "recompute-settings": ("memory-update",),
    "recompute-uniform-layers": ("memory-update",),
    "sequence-parallel-needs-tensor-parallel": ("memory-update",),
    "transformer-overrides-refused": ("recompute-",),
}


def judge(
    loaded: LoadedRecipe,
    tree: AssembledTree | None = None,
    machine: Machine | None = None,
    *,
    here: bool = False,
    rehearse: bool = False,
    storage_speed: float | None = None,
    find_python: Callable[[], str] | None = None,
    root: Path = Path("/"),
) -> Judgement:
    """Judge a recipe's keys, values, files, weights, layout, batches and memory, and run its trainer's validation.

    Args:
        tree: The workspace's tree; None judges the recipe alone. The tree of another manifest is reported and not
            read.
        machine: Memory and disk of the devices and hosts.
        here: Whether the recipe is to run on this machine, so that model, data and the address of Ray's head are
            needed.
        rehearse: Whether it will be rehearsed, with tiny weights and data of the rehearsal's own.
        storage_speed: Bytes a second of the storage, for the time that commands on weights take.
        find_python: Returns the interpreter that runs `trainer.validate`, or raises NotValidated; None: not to be run.
        root: Where /dev is looked for.
    """
    with _garbage_collection_paused():
        judgement = _judge(loaded, tree, machine, here)
    if not here and not rehearse:
        judgement = replace(judgement, not_here=absent_paths(loaded))
    judgement = (
        without_missing_files(judgement) if rehearse else with_weights(judgement, loaded, storage_speed)
    )
    if tree is None or find_python is None or loaded.recipe.trainer.validate_ is None:
        return judgement
    from npu_rl.recipes.judgement.trainer_validation import validated

    return validated(judgement, loaded, tree, find_python, root)


def _judge(
    loaded: LoadedRecipe, tree: AssembledTree | None, machine: Machine | None, here: bool
) -> Judgement:
    loaded = loaded.in_stack(tree.stack) if tree and tree.stack else loaded
    mismatch = _manifest_mismatch(loaded, tree)
    code = None if tree is None or mismatch else tree.code
    answers = None if code is None else AnswerCache(code)
    if loaded.recipe.has_own_keys:
        return _judge_own_keys(loaded, code, mismatch, answers, machine or Machine(), here)
    trainer = read_trainer(loaded.recipe, code, answers)
    config = trainer.tree if isinstance(trainer, KeyResolver) else None
    plan = plan_of(loaded, code, machine, config)
    key_findings = [
        *mismatch,
        *check_keys(loaded, trainer, code),
        *environment_findings(loaded, plan.facts.env, code),
        *adaptation_findings(loaded, plan.facts.env, code, answers),
        *named_file_findings(loaded, code, here),
        *prepared_data_findings(loaded, code),
        *(_missing_cluster_address(loaded) if here else ()),
    ]
    if answers is not None:
        answers.save()
    key_findings = _drop_unexplained(key_findings, plan.findings())
    excepted = loaded.recipe.plan.except_
    plan_findings = merge_by_cause(
        loaded,
        _drop_implied(plan.findings(), key_findings, excepted),
        key_findings,
        excepted,
        lambda changed: plan_of(changed, code, machine, config).findings(),
    )
    plan = _skip_implied_rules(plan, plan_findings)
    faults = judge_faults(loaded, code, plan.facts.env)
    key_findings += faults.key_findings
    plan_findings += faults.tree_findings
    found = [*key_findings, *plan_findings]
    ids = {
        *RULE_IDS,
        *ENVIRONMENT_RULES,
        *FILE_RULES,
        *DATA_RULES,
        _CLUSTER_ADDRESS,
        FAULT_RULE,
        ADAPTATION_RULE,
        *(rule.id for rule in plan.rules),
        *(one.rule for one in found),
    }
    exceptions = overrule(loaded, found, ids)
    return Judgement(
        (*exceptions.remaining(key_findings), *exceptions.findings),
        exceptions.remaining(plan_findings),
        loaded.recipe,
        plan.machine,
        plan,
        frozenset(config.entries) if config else frozenset(),
        exceptions.reasons,
        trainer.unchecked if isinstance(trainer, KeyResolver) else {},
        config.search_path if config else (),
        faults.accepted,
        frozenset(config.choices) if config else frozenset(),
    )


def _judge_own_keys(
    loaded: LoadedRecipe,
    code: Path | None,
    mismatch: Sequence[Finding],
    answers: AnswerCache | None,
    machine: Machine,
    here: bool,
) -> Judgement:
    """Judge a recipe for a trainer with its own keys: keys, classes, paths, environment and cluster address."""
    from npu_rl.recipes.judgement import own_keys_check

    trainer = own_keys_check.read_own_trainer(loaded.recipe, code, answers) if code and answers else None
    own = trainer if isinstance(trainer, own_keys_check.OwnTrainer) else None
    environment = run_environment(loaded)
    faults = judge_faults(loaded, code, environment)
    found = [
        *mismatch,
        *faults.key_findings,
        *own_keys_check.check_own_keys(loaded, trainer, code),
        *environment_findings(loaded, environment, code),
        *adaptation_findings(loaded, environment, code, answers),
        *own_keys_check.path_findings(loaded, own.tree if own else None, here),
        *(_missing_cluster_address(loaded) if here else ()),
    ]
    if answers is not None:
        answers.save()
    ids = {
        *own_keys_check.RULES,
        *ENVIRONMENT_RULES,
        _CLUSTER_ADDRESS,
        FAULT_RULE,
        ADAPTATION_RULE,
        *(one.rule for one in found),
    }
    exceptions = overrule(loaded, [*found, *faults.tree_findings], ids)
    machine = replace(machine, die=machine.die or int(loaded.recipe.cluster.die_memory_gb * 1e9))
    return Judgement(
        (*exceptions.remaining(found), *exceptions.findings),
        exceptions.remaining(faults.tree_findings),
        loaded.recipe,
        machine,
        None,
        frozenset(own.tree.entries) if own else frozenset(),
        exceptions.reasons,
        own.unchecked if own else {},
        own.tree.search_path if own else (),
        faults.accepted,
        frozenset(own.tree.choices) if own else frozenset(),
    )


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which takes a tenth of the time with the syntax trees of a hundred files."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _manifest_mismatch(loaded: LoadedRecipe, tree: AssembledTree | None) -> list[Finding]:
    if tree is None:
        return []
    wanted = loaded.manifest_facts.name
    if loaded.stack or wanted == tree.manifest:
        return []
    message = f"the recipe is for {wanted}, and the workspace {tree.code.parent} is {tree.manifest}"
    fix = f"pass --workspace DIR of {wanted}; set it up with npu-rl setup --manifest {loaded.manifest} --workspace DIR"
    return [loaded.finding(MANIFEST_MISMATCH, Severity.ERROR, ("manifest",), message, fix)]


def _missing_cluster_address(loaded: LoadedRecipe) -> list[Finding]:
    """Return an error if the recipe needs several machines but sets no address of their Ray cluster."""
    cluster = loaded.recipe.cluster
    if cluster.nodes == 1 or cluster.address or loaded.recipe.device != "npu":
        return []
    message = f"{cluster.nodes} machines, and no address of a Ray head"
    fix = (
        "set cluster.address to HOST:PORT of Ray's head, such as 10.0.0.1:6766 (head.sh and worker.sh of --dry-run "
        "start Ray there)"
    )
    return [loaded.finding(_CLUSTER_ADDRESS, Severity.ERROR, ("cluster", "address"), message, fix)]


def _skip_implied_rules(plan: Plan, findings: Iterable[Finding]) -> Plan:
    """Return the plan with broken rules marked as skipped if they have no finding of their own."""
    kept = {one.rule for one in findings} | {rule.id for rule in plan.rules if rule.ok}
    why = "follows from another finding"
    rules = (one if one.id in kept else replace(one, ok=True, skipped=why) for one in plan.rules)
    return replace(plan, rules=tuple(rules))


def _drop_unexplained(key_findings: Sequence[Finding], plan_findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings on keys, without each "invalid-value" that a rule of the plan explains."""
    explained = {
        one.trainer_key
        for one in plan_findings
        if one.rule in _EXPLAINING_RULES and one.severity is Severity.ERROR
    }
    return [one for one in key_findings if one.rule != "invalid-value" or one.trainer_key not in explained]


def _drop_implied(
    found: Sequence[Finding], known: Iterable[Finding], excepted: Collection[str]
) -> list[Finding]:
    """Return the findings that aren't just consequences of an invalid value or another broken rule.

    Args:
        found: Findings of the plan.
        known: Findings on keys, values and files.
        excepted: Rules that the recipe overrules; what follows from them is kept.
    """
    refused = [one for one in known if one.rule in _VALUE_RULES and one.severity is not Severity.NOTE]
    bad = {one.trainer_key or one.path for one in refused}
    implied = [
        rule
        for one in refused
        for part, rules in _IMPLIED_BY_KEY.items()
        if part in one.key or part in one.trainer_key
        for rule in rules
    ]
    for one in refused:
        implied += _IMPLIED_BY_RULE.get(one.rule, ())
    for one in found:
        if one.severity is Severity.ERROR and one.rule not in excepted:
            implied += _IMPLIED_BY_RULE.get(one.rule, ())
    return [
        one
        for one in found
        if not {one.trainer_key or one.path, one.path} & bad and not one.rule.startswith(tuple(implied))
    ]
