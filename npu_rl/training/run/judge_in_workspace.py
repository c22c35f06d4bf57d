"""A recipe judged by the tree of a workspace: what `recipes check` and `plan` print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from npu_rl.common import byte_code
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
from npu_rl.recipes.judgement.trainer_probe import NotProbed
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.discovery import open_workspace_if_any
from npu_rl.workspace.folder.locked_manifest import stack_of
from npu_rl.workspace.folder.receipt import read_receipt, validation_command
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.require_locked import require_locked

Notify = Callable[[str], None]


def judge_in_workspace(
    workspace: Path | None,
    loaded: LoadedRecipe,
    notify: Notify,
    machine: Machine | None = None,
    *,
    probe: bool = False,
) -> tuple[Judgement, AssembledTree | None]:
    """Judge a recipe by the tree of the named workspace, or of the one that is found, if any.

    Args:
        probe: Whether the trainer's own code judges the values, which takes seconds.
    """
    paths = open_workspace_if_any(workspace, notify)
    if paths is None:
        return judge(loaded, None, machine), None
    stack = stack_of(paths)
    tree = AssembledTree(paths.code, stack.name, stack)
    if probe:
        key = byte_code.shell_key(read_receipt(paths).digest)
        tree = replace(tree, setup_command=validation_command(paths), byte_code=key)
    find_python = partial(_training_python, paths, notify) if probe else None
    return judge(loaded, tree, machine, find_python=find_python), tree


def _training_python(paths: WorkspacePaths, notify: Notify) -> str:
    """Return the training interpreter of a workspace that equals its lock. Raises NotProbed if it differs."""
    try:
        require_locked(paths, notify, "its checks may be those of other code", None)
        python = choose(None, paths)
    except NpuRlError as error:
        reason = f": {'; '.join(error.why.splitlines())}" if error.why else ""
        raise NotProbed(f"{error.what}{reason}", (error.hint or "").partition("\n")[0]) from error
    if sys.stderr.isatty():  # a step of seconds
        notify(f"Values: judged by the trainer's own code in {python} ...")
    return python
