"""The options and the output of `npu-rl setup --install`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.cli.show import say, tell

if TYPE_CHECKING:
    from npu_rl.stack.installation.install import InstallRequest
    from npu_rl.stack.installation.install_plan import InstallPlan
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def refuse_without_install(venv: Path | None, wheels: list[Path] | None, *, dry_run: bool) -> None:
    """Raise UsageError for an option that only means something with --install."""
    from npu_rl.common.errors import UsageError

    given = {"--venv": venv is not None, "--wheels": bool(wheels), "--dry-run": dry_run}
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"{option} is for installing packages", hint="Add --install, or leave it out.")


def planned_installation(
    manifest: str,
    paths: WorkspacePaths,
    python: str | None,
    venv: Path | None,
    wheels: list[Path] | None,
    *,
    offline: bool,
    dry_run: bool,
) -> tuple[InstallRequest, InstallPlan]:
    """Return the planned installation. An installation that can't work raises here, before anything is fetched."""
    from npu_rl.common.errors import UsageError
    from npu_rl.common.folder_owner import require_own
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.installation.install import finish_interrupted, plan, requested

    if python is not None and venv is not None:
        raise UsageError("--python and --venv name different environments", hint="Give one of them.")
    if venv is not None:
        venv = user_path(venv, "--venv").absolute()
        require_own("environment", venv)
    request = requested(
        manifest,
        "" if venv is not None else _interpreter(python, paths),
        venv,
        tuple(user_path(place, "--wheels").absolute() for place in wheels or ()),
        offline=offline,
    )
    if not dry_run:
        finish_interrupted(request, tell)
    return request, plan(request)


def _interpreter(python: str | None, paths: WorkspacePaths) -> str:
    from npu_rl.workspace.folder.chosen_interpreter import choose

    return choose(python, paths if paths.is_workspace else None)


def say_plan(plan: InstallPlan) -> None:
    """Print a plan."""
    from npu_rl.stack.installation.install_plan import plan_lines

    for line in plan_lines(plan):
        say(line)


def say_installed(plan: InstallPlan) -> None:
    """Print the installed packages."""
    from npu_rl.stack.installation.install_plan import done_lines

    for line in done_lines(plan):
        say(line)


def install_planned(request: InstallRequest, planned: InstallPlan) -> InstallPlan:
    """Install the packages, and return the completed plan."""
    from npu_rl.stack.installation.install import install

    return install(request, planned, tell)


def installed_json(plan: InstallPlan | None) -> dict[str, Any]:
    """Return the packages' part of the JSON document."""
    from npu_rl.stack.installation.install_plan import plan_json

    return {} if plan is None else {"packages": plan_json(plan)}
