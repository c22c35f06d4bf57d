"""The installation of a manifest's packages into the interpreter that a command names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.common.folder_owner import require_own
from npu_rl.common.user_path import user_path
from npu_rl.stack.installation.install_plan import InstallPlan, plan_installation
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def planning(
    manifest: str, paths: WorkspacePaths, python: str | None, venv: Path | None, wheels: Iterable[Path]
) -> Callable[[], InstallPlan]:
    """Return a function that plans the installation, which raises for one that can't work.

    Raises:
        UsageError: If both an interpreter and an environment are named.
        HostError: If the environment is another user's.
    """
    if python is not None and venv is not None:
        raise UsageError("--python and --venv name different environments", hint="Give one of them.")
    named = tuple(user_path(place, "--wheels").absolute() for place in wheels)
    if venv is None:
        chosen = choose(python, paths if paths.is_workspace else None)
        return partial(plan_installation, manifest, chosen, None, named)
    venv = user_path(venv, "--venv").absolute()
    require_own("environment", venv)
    return partial(plan_installation, manifest, "", venv, named)
