"""Loading of a recipe, and printing of findings, for all commands that judge a recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.cli.show import print_json, say, tell

if TYPE_CHECKING:
    from npu_rl.common.yaml_documents.finding import Finding
    from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
    from npu_rl.recipes.sizing.machine import Machine
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def load(name: str, overrides: Sequence[str], as_json: bool) -> LoadedRecipe:
    """Load a recipe. as_json: print its errors as findings and exit, instead of raising InvalidRecipe."""
    from npu_rl.common.yaml_documents.document_kind import InvalidRecipe
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    try:
        return load_recipe(name, overrides)
    except InvalidRecipe as error:
        if not as_json:
            raise
        print_json({"ok": False, "recipe": name, "code": None, "findings": _problems(error)})
        raise SystemExit(error.exit_code) from None


def judge_in(
    workspace: Path | None,
    loaded: LoadedRecipe,
    machine: Machine | None = None,
    *,
    probe: bool = False,
) -> tuple[Judgement, AssembledTree | None]:
    """Judge a recipe by the tree of the named workspace, or of the one that is found, if any.

    probe: whether the trainer's own code judges the values, which takes seconds.
    """
    from npu_rl.common import byte_code
    from npu_rl.recipes.judgement.judge import judge
    from npu_rl.recipes.judgement.judgement import AssembledTree
    from npu_rl.workspace.folder.discovery import open_workspace_if_any
    from npu_rl.workspace.folder.locked_manifest import stack_of
    from npu_rl.workspace.folder.receipt import read_receipt, validation_command

    paths = open_workspace_if_any(workspace, tell)
    if paths is None:
        return judge(loaded, None, machine), None
    stack = stack_of(paths)
    tree = AssembledTree(paths.code, stack.name, stack)
    if probe:
        key = byte_code.shell_key(read_receipt(paths).digest)
        tree = replace(tree, setup_command=validation_command(paths), byte_code=key)
    find_python = partial(_training_python, paths) if probe else None
    return judge(loaded, tree, machine, find_python=find_python), tree


def _training_python(paths: WorkspacePaths) -> str:
    """Return the training interpreter of a workspace that equals its lock. Raises NotProbed if it differs."""
    from npu_rl.common.errors import NpuRlError
    from npu_rl.recipes.judgement.trainer_probe import NotProbed
    from npu_rl.workspace.folder.chosen_interpreter import choose
    from npu_rl.workspace.verification.require_locked import require_locked

    try:
        require_locked(paths, tell, "its checks may be those of other code", None)
        python = choose(None, paths)
    except NpuRlError as error:
        reason = f": {'; '.join(error.why.splitlines())}" if error.why else ""
        raise NotProbed(f"{error.what}{reason}", (error.hint or "").partition("\n")[0]) from error
    if sys.stderr.isatty():  # a step of seconds
        tell(f"Values: judged by the trainer's own code in {python} ...")
    return python


def rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return findings for programs, without secrets."""
    from npu_rl.common.masking import masked_text

    shown = [found.to_json() for found in findings]
    return [row | {name: masked_text(row[name]) for name in ("message", "fix")} for row in shown]


def say_findings(findings: Iterable[Finding]) -> None:
    """Print findings, without secrets."""
    from npu_rl.common.masking import masked_text

    for found in findings:
        for line in found.lines():
            say(masked_text(line))


def say_faults(loaded: LoadedRecipe, tree: AssembledTree | None) -> None:
    """Print one line on the known faults of the tree, if there is one, unless the recipe is for another manifest."""
    if tree is None or tree.stack is None:
        return
    here = loaded.in_stack(tree.stack)
    line = faults_of(here, tree.code) if here.stack else ""
    if line:
        say(line)


def faults_of(loaded: LoadedRecipe, code: Path) -> str:
    """Return the line on the known faults of a tree under a recipe's switches and strategy."""
    from npu_rl.recipes.faults.verdict import faults_line
    from npu_rl.recipes.judgement.fault_findings import strategy_of, switched_off
    from npu_rl.recipes.sizing.plan_inputs import run_environment

    return faults_line(code, switched_off(loaded, run_environment(loaded)), strategy_of(loaded))


def _problems(error: Any) -> list[dict[str, Any]]:
    from npu_rl.common.yaml_documents.finding import Finding, Severity
    from npu_rl.common.yaml_documents.problems import dotted, place

    found = []
    for one in error.problems:
        meant = " or ".join(one.suggestions)
        fix = f"write {meant} in place of {dotted(one.path)}" if meant else ""
        where = place(one.file, one.line)
        found.append(Finding("invalid-recipe", Severity.ERROR, one.path, "", one.message, fix, where))
    return rows(found)
