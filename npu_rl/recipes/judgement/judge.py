"""The judgement of a recipe that `recipes check`, `plan`, `train --dry-run` and `train` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.environment.environment_check import environment_findings
from npu_rl.recipes.judgement.adaptation_check import adaptation_findings
from npu_rl.recipes.judgement.fault_findings import judge_faults
from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
from npu_rl.recipes.judgement.key_check import VALUES, check_keys, read_trainer
from npu_rl.recipes.judgement.missing_files import absent_paths, path_findings
from npu_rl.recipes.judgement.named_files import named_file_findings
from npu_rl.recipes.judgement.overruling import overrule
from npu_rl.recipes.judgement.prepared_data import prepared_data_findings
from npu_rl.recipes.judgement.recipe_weights import with_weights
from npu_rl.recipes.plan.plan import plan_of
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.sizing.plan_inputs import run_environment
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver

MANIFEST_MISMATCH = "workspace-manifest"
# Findings that the trainer's own code or a variable's reader proves, or without which nothing of the tree is known, may
# be certain; no other on keys and files.
_CERTAIN = (
    *(MANIFEST_MISMATCH, "trainer-config", "trainer-class", VALUES),
    *("environment-value", "environment-owned"),
)


def judge(
    loaded: LoadedRecipe,
    tree: AssembledTree | None = None,
    machine: Machine | None = None,
    *,
    here: bool = False,
    rehearse: bool = False,
    find_python: Callable[[], str] | None = None,
    root: Path = Path("/"),
) -> Judgement:
    """Judge a recipe's keys, files, weights, layout, batches and memory, and have its trainer judge the values.

    Args:
        tree: The workspace's tree; None judges the recipe alone. The tree of another manifest is reported and not
            read.
        machine: Memory and disk of the devices and hosts.
        here: Whether the recipe is to run on this machine, so that model, data and the address of Ray's head are
            needed.
        rehearse: Whether it will be rehearsed, with tiny weights and data of the rehearsal's own.
        find_python: Returns the training interpreter, which runs the trainer's own checks of values, or raises
            NotProbed; None: they are not to be run.
        root: Where /dev is looked for.
    """
    judgement = _judge(loaded, tree, machine, here)
    if not here and not rehearse:
        judgement = replace(judgement, not_here=absent_paths(loaded))
    if not rehearse:
        judgement = with_weights(judgement, loaded)
    if tree is None or find_python is None:
        return judgement
    from npu_rl.recipes.judgement.trainer_probe import probed

    return probed(judgement, loaded, tree, find_python, root)


def _judge(
    loaded: LoadedRecipe, tree: AssembledTree | None, machine: Machine | None, here: bool
) -> Judgement:
    loaded = loaded.in_stack(tree.stack) if tree and tree.stack else loaded
    mismatch = _manifest_mismatch(loaded, tree)
    code = None if tree is None or mismatch else tree.code
    trainer = read_trainer(loaded.recipe, code)
    config = trainer.tree if isinstance(trainer, KeyResolver) else None
    plan = None if loaded.recipe.has_own_keys else plan_of(loaded, code, machine, config)
    environment = run_environment(loaded) if plan is None else plan.facts.env
    faults = judge_faults(loaded, code, environment)
    key_findings = [
        *mismatch,
        *check_keys(loaded, trainer, code),
        *environment_findings(loaded, environment, code),
        *adaptation_findings(loaded, environment, code),
        *path_findings(loaded, config, here),
        *named_file_findings(loaded, code, here),
        *(() if plan is None else prepared_data_findings(loaded, code)),
        *(_missing_cluster_address(loaded) if here else ()),
        *faults.key_findings,
    ]
    key_findings = [one if one.rule in _CERTAIN else replace(one, certain=False) for one in key_findings]
    plan_findings = [*(plan.findings() if plan else ()), *faults.tree_findings]
    exceptions = overrule(loaded, [*key_findings, *plan_findings])
    machine = machine or Machine()
    return Judgement(
        (*exceptions.remaining(key_findings), *exceptions.findings),
        exceptions.remaining(plan_findings),
        loaded.recipe,
        plan.machine
        if plan
        else replace(machine, die=machine.die or int(loaded.recipe.cluster.die_memory_gb * 1e9)),
        plan,
        frozenset(config.entries) if config else frozenset(),
        exceptions.reasons,
        {f"the keys in {section}": why for section, why in trainer.unchecked.items()}
        if isinstance(trainer, KeyResolver)
        else {},
        config.search_path if config else (),
        faults.accepted,
        frozenset(config.choices) if config else frozenset(),
    )


def _manifest_mismatch(loaded: LoadedRecipe, tree: AssembledTree | None) -> list[Finding]:
    if tree is None:
        return []
    wanted = loaded.manifest_name
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
    return [loaded.finding("cluster-address", Severity.ERROR, ("cluster", "address"), message, fix)]
