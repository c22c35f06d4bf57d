"""The options and the output of `npu-rl setup --install`, imported with that option only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.cli.show import print_json, say, tell
from npu_rl.common.errors import UsageError
from npu_rl.common.folder_owner import require_own
from npu_rl.common.user_path import user_path
from npu_rl.stack.installation.install import install
from npu_rl.stack.installation.install_plan import (
    InstallPlan,
    done_lines,
    plan_installation,
    plan_json,
    plan_lines,
)
from npu_rl.workspace.folder.chosen_interpreter import choose

if TYPE_CHECKING:
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def planning(
    manifest: str, paths: WorkspacePaths, python: str | None, venv: Path | None, wheels: Iterable[Path]
) -> Callable[[], InstallPlan]:
    """Return a function that plans the installation, which raises for one that can't work."""
    if python is not None and venv is not None:
        raise UsageError("--python and --venv name different environments", hint="Give one of them.")
    named = tuple(user_path(place, "--wheels").absolute() for place in wheels)
    if venv is not None:
        venv = user_path(venv, "--venv").absolute()
        require_own("environment", venv)
        return partial(plan_installation, manifest, "", venv, named)
    return partial(
        plan_installation, manifest, choose(python, paths if paths.is_workspace else None), None, named
    )


def say_plan(plan: InstallPlan, *, json: bool) -> None:
    """Print a plan."""
    if json:
        print_json({"packages": plan_json(plan)})
    else:
        for line in plan_lines(plan):
            say(line)


def install_planned(plan: InstallPlan, wheels: Iterable[Path], *, offline: bool) -> None:
    """Install the packages."""
    install(plan, wheels, tell, offline=offline)


def say_installed(plan: InstallPlan) -> None:
    """Print the installed packages."""
    for line in done_lines(plan):
        say(line)
