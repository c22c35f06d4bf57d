"""The command `npu-rl setup`."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Jobs, Json, ManifestOrWorkspace, Offline, Python, Rewrite, network
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import (
    KEEPS_DOWNLOADS,
    amount,
    command_line,
    if_interrupted,
    print_json,
    say,
    say_ids,
    tell,
)
from npu_rl.common.documentation import page_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_rl.stack.bundles.open_bundle import OpenBundle
    from npu_rl.stack.installation.install_plan import InstallPlan
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.workspace.folder.built_products import BuildOutcome
    from npu_rl.workspace.folder.lock_summary import SetupReport
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@examples(
    "npu-rl setup --manifest quickstart",
    "npu-rl setup --install --venv ./train-env   # packages of the workspace here",
    "npu-rl setup --bundle quickstart.tar   # without a network",
)
def setup(
    manifest: ManifestOrWorkspace = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace", "-w", metavar="DIR", help="The workspace folder.  [default: ./npu-rl-workspace]"
        ),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock", metavar="LOCK", help="The lock to use.  [default: NAME.lock.json beside the manifest]"
        ),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="FILE", help="Take everything from this bundle, and use no network."
        ),
    ] = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Move local edits to .npu-rl/kept/TIME.")
    ] = False,
    python: Python = None,
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help=f"Run the manifest's build commands, too, which are upstream's own code: {page_url('install')}",
        ),
    ] = False,
    install: Annotated[bool, typer.Option("--install", help="Install the manifest's packages, too.")] = False,
    venv: Annotated[
        Path | None,
        typer.Option(
            "--venv",
            metavar="DIR",
            help="Install into this virtual environment, which is made if it is missing.",
        ),
    ] = None,
    wheels: Annotated[
        list[Path] | None,
        typer.Option(
            "--wheels",
            metavar="PATH",
            help="A folder of wheels or a wheel, for what the host lacks, such as torch. May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --install, print what would be done, and do nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Fetch and assemble the locked stack.

    Writes ./npu-rl-workspace unless --workspace names another folder. One that is up to date is left as it is.
    --manifest may be left out for a bundle of one bundled manifest, and with --install for the workspace here.
    """
    import time

    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.folder.discovery import folder_to_set_up
    from npu_rl.workspace.folder.laid_files import untouched
    from npu_rl.workspace.folder.lock_summary import SetupOutcome, SetupReport, manifest_changed

    _demand_install(install, {"--venv": venv, "--wheels": wheels, "--dry-run": dry_run})
    planned: Callable[[], InstallPlan] | None = None
    packages: InstallPlan | None = None
    built: list[BuildOutcome] | None = None
    with ExitStack() as held:
        opened = _opened_bundle(held, bundle)
        if install and manifest is None and opened is None:
            from npu_rl.workspace.packages.workspace_manifest import workspace_manifest

            manifest, paths = workspace_manifest(workspace, tell)
        else:
            paths = folder_to_set_up(workspace)
        path = _manifest_file(manifest, opened)
        offline = offline or opened is not None
        named = [*(wheels or ()), *([opened.wheels] if opened and opened.wheels else [])]
        if install:
            from npu_rl.workspace.packages.planned_packages import planning

            planned = planning(str(path) if manifest is None else manifest, paths, python, venv, named)
            packages = planned()  # an installation that can't work raises here, before anything is fetched
            if dry_run:
                _say_plan(packages, json)
                return
        place = lock or lock_model.lock_path(path)
        text = lock_model.read_text(place)
        found, digest = lock_model.parse_with_digest(text, str(place))
        if opened is not None:
            from npu_rl.stack.bundles.open_bundle import require_lock

            require_lock(opened, found)
        if manifest_changed(found, path):
            tell(f"note: {path.name} has changed since its lock was made; the lock is what is set up.")
        started = time.monotonic()
        python = _absolute(python)
        if untouched(paths, text, python):
            outcome = SetupOutcome(False, seconds=time.monotonic() - started)
        else:
            from npu_rl.stack.bundles.open_bundle import bundled_store
            from npu_rl.stack.store import Store
            from npu_rl.workspace.folder.setup import Request, run

            store = Store() if opened is None else bundled_store(opened, found)
            shown = held.enter_context(Fetches())
            fetching = network(rewrite, offline=offline)
            if_interrupted(KEEPS_DOWNLOADS)
            request = Request(found, paths, path, fetching, shown, jobs, discard, python, store)
            here = _current_folder()
            outcome = run(request, tell)
            if here is not None and here.is_relative_to(paths.root) and _current_folder() != here:
                tell(f"note: setup has replaced this folder; enter it again: cd {shlex.quote(str(here))}")
            digest = lock_model.digest_of(found)  # as it was laid: one written by hand may spell it otherwise
        if opened is not None and opened.wheels is not None:
            from npu_rl.workspace.packages.install_command import keep_bundle

            keep_bundle(
                paths, opened.path, lock_model.digest_of(found)
            )  # for the hint where some are missing
        if planned is not None:
            from npu_rl.stack.installation.install import install as install_packages

            packages = planned()
            install_packages(packages, named, tell, offline=offline)
            python = packages.target.path if venv is not None else python
    if python is not None:
        _keep_choice(paths, python)
    if build:
        from npu_rl.workspace.builds.build_components import build_with

        built = build_with(paths, found, python, tell)
    changes = None if packages is None else packages.changes
    report = SetupReport(paths.root, found, digest, outcome, built, changes)
    if json:
        print_json(report)
    else:
        _say(report, paths)
        _say_next(found, paths)


def _demand_install(install: bool, given: dict[str, object]) -> None:
    from npu_rl.common.errors import UsageError

    for option, value in given.items():
        if value and not install:
            raise UsageError(f"{option} is for installing packages", hint="Add --install, or leave it out.")


def _opened_bundle(held: ExitStack, bundle: Path | None) -> OpenBundle | None:
    """Return the named bundle, whose files are there until `held` ends; None without a name."""
    if bundle is None:
        return None
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.bundles.open_bundle import open_bundle

    return held.enter_context(open_bundle(user_path(bundle, "--bundle")))


def _manifest_file(manifest: str | None, bundle: OpenBundle | None) -> Path:
    """Return the file of the named manifest, or else of the bundle's."""
    from npu_rl.common.errors import UsageError
    from npu_rl.common.yaml_documents.document_kind import find_manifest

    if manifest is None and bundle is not None:
        from npu_rl.stack.bundles.open_bundle import only_manifest

        manifest = only_manifest(bundle)
    if manifest is None:
        raise UsageError(
            "Missing option '--manifest' / '-m'",
            hint="Name one that `npu-rl manifests list` prints: npu-rl setup --manifest quickstart",
        )
    return find_manifest(manifest)


def _current_folder() -> Path | None:
    """Return the current folder; None if it is gone, also if another one has its path now."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _absolute(python: str | None) -> str | None:
    """Return the interpreter's path; links are not followed, since a virtual environment's is one."""
    import shutil

    from npu_rl.common.errors import UsageError

    if python is None:
        return None
    found = shutil.which(python)
    if found is None:
        hint = "--python takes the path or name of an interpreter"
        raise UsageError(f"Program not found: {python!r}", hint=hint)
    return os.path.abspath(found)  # noqa: PTH100  Path.resolve would follow the link


def _keep_choice(paths: WorkspacePaths, python: str) -> None:
    from npu_rl.workspace.folder.chosen_interpreter import keep_choice

    try:
        keep_choice(paths, python)
        tell(f"Your commands in this workspace use {python}")
    except (OSError, ValueError) as error:
        why = f"can't be kept in your state folder ({error})"
        tell(f"note: the choice of {python} {why}: pass --python to each command")


# -- --install and --build ----------------------------------------------------------------------------


def _say_plan(plan: InstallPlan, json: bool) -> None:
    from npu_rl.stack.installation.install_plan import plan_lines

    if json:
        print_json(plan.changes)
    else:
        for line in plan_lines(plan):
            say(line)


# -- text ---------------------------------------------------------------------------------------------


def _say(report: SetupReport, paths: WorkspacePaths) -> None:
    from npu_rl.recipes.faults.verdict import faults_line
    from npu_rl.workspace.folder.lock_summary import stack_lines

    lock, outcome = report.lock, report.outcome
    if outcome.changed:
        for line in stack_lines(lock):
            say(line)
        if outcome.kept:
            say(f"Local changes were moved to {outcome.kept}")
    else:
        say(f"{report.workspace} is up to date with {lock.manifest}; nothing to do.")
    say_ids(lock, report.lock_digest)
    if outcome.changed:
        say(f"{report.workspace} is ready: {amount(outcome.received)} received, {outcome.seconds:.1f} s.")
    for one in report.built or ():
        how = "built already" if one.already else "built"
        for product in one.products:
            facts = f"{one.component}, {amount(product.size)}, {product.sha256[:12]}"
            say(f"  {how}  {product.path}  ({facts})")
    if report.built == []:
        say(f"{lock.manifest} has no build commands.")
    faults = faults_line(paths.code)
    if faults:
        say(faults)
    if report.packages is not None:
        from npu_rl.stack.installation.install_plan import done_lines

        for line in done_lines(report.packages):
            say(line)


def _say_next(lock: Lock, paths: WorkspacePaths) -> None:
    """Print the commands that prove the workspace, and train in it: on a CPU, or after a plan for other devices."""
    from npu_rl.common.bundled import bundled_recipe_for
    from npu_rl.workspace.folder.lock_summary import manifests_of
    from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME

    recipe = bundled_recipe_for(manifests_of(lock))
    here = _current_folder()
    at = None if here is not None and paths.root == here / DEFAULT_NAME else paths.root
    activate = shlex.quote(str(paths.root / "activate"))
    say(f"Next: {command_line('verify', workspace=at)}; source {activate}")
    if recipe is None:  # `train` needs a recipe of the user's, and a bundled one is where it begins
        say(f"      {command_line('recipes', 'list')}   # a recipe to copy, for npu-rl train")
        return
    if lock.device != "cpu":
        say(f"      {command_line('plan', recipe, workspace=at)}")
    say(f"      {command_line('train', recipe, workspace=at)}")
