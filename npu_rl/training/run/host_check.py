"""Checks of this host against a recipe and its manifest, for `npu-rl doctor` and before `train` starts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common import host_facts
from npu_rl.common.errors import HostError
from npu_rl.training.host.describe_host import describe_host
from npu_rl.training.host.examine_host import DoctorReport, examine_host
from npu_rl.training.host.line import DoctorLine
from npu_rl.training.host.wanted_host import WantedHost

if TYPE_CHECKING:
    from npu_rl.common.interpreter import Interpreter
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
    from npu_rl.recipes.recipe.schema import Recipe
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.stack.sources.progress import Notify


def examine(manifest: str | None, recipe: str | None, python: str | None) -> DoctorReport:
    """Compare this host with a manifest and a recipe, or with its kind of machine if neither is given.

    Args:
        manifest: A name or path; None for the recipe's own.

    Raises:
        ManifestError: If the manifest is invalid.
        RecipeError: If the recipe is invalid.
    """
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    loaded = load_recipe(recipe) if recipe is not None else None
    named = manifest or (loaded.manifest if loaded else None)
    host = describe_host(_interpreter(python))
    wanted = wanted_by_manifest(named) if named else WantedHost()
    if named and not host.python.problem:
        wanted = replace(wanted, install=_install(str(named), wanted, host.python))
    return examine_host(host, wanted.with_recipe(loaded.recipe) if loaded else wanted, Path.cwd())


def require_device(loaded: LoadedRecipe, root: Path) -> None:
    """Raise HostError if a recipe needs devices that this host does not have."""
    recipe = loaded.recipe
    if recipe.device != "cpu" and not host_facts.devices(recipe.device, root):
        named, file = ("NPUs", "davinci") if recipe.device == "npu" else ("NVIDIA GPUs", "nvidia")
        raise HostError(
            f"{recipe.name} is for {named}, and this machine shows none",
            why=f"There is no /dev/{file}0, 1, ... here.",
            hint=f"Rehearse it on this CPU: npu-rl train {shlex.quote(loaded.given)} --rehearse",
        )


def require_host(
    recipe: Recipe,
    lock: Lock,
    python: str | Interpreter,
    notify: Notify,
    runs: Path,
    root: Path = Path("/"),
    install: str = "",
) -> None:
    """Examine this host before a run on devices. Problems that may be harmless are only reported.

    Args:
        runs: Folder of the run's record, whose disk matters.
        root: Folder below which everything is read.
        install: The command that installs the stack's packages.

    Raises:
        HostError: If the training can't work here: fewer devices than the recipe has, no torch, no torch_npu, or one
            that is for another torch.
    """
    if recipe.device == "cpu":
        return
    notify("examining this host")
    host = describe_host(python, root)
    wanted = WantedHost(lock.manifest, lock.device, lock.host, lock.requirements, lock.env, install)
    report = examine_host(host, wanted.with_recipe(recipe), runs)
    stopping = [line for line in report.red if line.stops]
    if stopping:
        others = len(report.red) - len(stopping)
        raise HostError(
            f"{recipe.name} can't run on this host",
            why="\n".join(_reason(line) for line in stopping),
            hint="\n".join(
                [
                    *dict.fromkeys(line.fix for line in stopping),
                    f"All lines{f', {others} more of them red' if others else ''}: npu-rl doctor "
                    f"--recipe {shlex.quote(recipe.name)} --python {shlex.quote(host.python.path)}",
                ]
            ),
        )
    for line in report.red:
        notify(f"warning: this host: {_reason(line)}. {line.fix}")


def _reason(line: DoctorLine) -> str:
    return f"{line.what}: {line.found}" + (f"; wanted: {line.wanted}" if line.wanted else "")


def wanted_by_manifest(name: str) -> WantedHost:
    """Return a manifest's requirements on a host. Raises ManifestError if it is invalid."""
    from npu_rl.stack.manifest.load_manifest import load_manifest

    manifest = load_manifest(name).manifest
    versions = {key: str(value) for key, value in manifest.host.model_dump().items() if value is not None}
    return WantedHost(manifest.name, manifest.device, versions, tuple(manifest.requirements), manifest.env)


def _install(manifest: str, wanted: WantedHost, python: Interpreter) -> str:
    """Return the command that installs a manifest's packages, into the workspace here if it is the manifest's."""
    from npu_rl.workspace.folder.discovery import find_workspace
    from npu_rl.workspace.folder.receipt import bundled_manifest, read_receipt
    from npu_rl.workspace.packages.install_command import (
        InstallPython,
        first_install_command,
        install_command,
    )

    into = InstallPython(python.path, python.version, wanted.versions.get("python"), managed=python.managed)
    paths = find_workspace(None)
    if paths is not None:
        setup = read_receipt(paths).setup
        if bundled_manifest(setup) == manifest.removeprefix("bundled:"):
            return install_command(paths, setup, into)
    return first_install_command(manifest, into)


def _interpreter(given: str | None) -> str:
    """Return the interpreter that `train` would use here: the workspace's, if there is one."""
    from npu_rl.workspace.folder.chosen_interpreter import choose
    from npu_rl.workspace.folder.discovery import find_workspace

    return choose(given, find_workspace(None))
