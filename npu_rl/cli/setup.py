"""The command `npu-rl setup`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import (
    KEEPS_DOWNLOADS,
    bundled_recipe_for,
    command_line,
    if_interrupted,
    manifests_of,
)
from npu_rl.cli.options import (
    Jobs,
    Json,
    ManifestOrWorkspace,
    Offline,
    Python,
    Rewrite,
    network,
)
from npu_rl.cli.show import amount, print_json, say, say_folded, say_ids, say_labelled, tell, watcher
from npu_rl.common.printable import one_line

if TYPE_CHECKING:
    from contextlib import ExitStack

    from npu_rl.stack.bundles.open_bundle import OpenBundle
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.stack.store import Store
    from npu_rl.workspace.builds.build_components import BuildOutcome
    from npu_rl.workspace.folder.lock_summary import SetupOutcome
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
            help="Run the manifest's build commands, too, which are upstream's own code; see docs/build.md.",
        ),
    ] = False,
    install: Annotated[
        bool,
        typer.Option("--install", help="Install the manifest's packages, too."),
    ] = False,
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
    from contextlib import ExitStack

    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.folder.discovery import require_own_workspace
    from npu_rl.workspace.folder.laid_files import untouched
    from npu_rl.workspace.folder.lock_summary import SetupOutcome, manifest_changed, setup_json

    if not install:
        _refuse_without_install(venv, wheels, dry_run=dry_run)
    packages = None
    with ExitStack() as held:
        opened = _opened_bundle(held, bundle)
        if install and manifest is None and opened is None:
            manifest, paths = _of_workspace(workspace)
        else:
            paths = _paths_to_set_up(workspace)
            if workspace is None:
                require_own_workspace(paths)
        path = _manifest_file(manifest, opened)
        if install:
            from npu_rl.cli.setup_install import install_planned, planning, say_installed, say_plan

            named = [*(wheels or ()), *([opened.wheels] if opened and opened.wheels else [])]
            planned = planning(str(path) if manifest is None else manifest, paths, python, venv, named)
            packages = planned()  # an installation that can't work raises here, before anything is fetched
            if dry_run:
                say_plan(packages, json=json)
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
            from npu_rl.workspace.folder.setup import Request, run

            store = _store_of(opened, found)
            shown = held.enter_context(watcher())
            fetching = network(rewrite, offline=offline or opened is not None)
            if_interrupted(KEEPS_DOWNLOADS)
            request = Request(found, paths, path, fetching, shown, jobs, discard, python, store)
            here = _folder_within(paths.root)
            outcome = run(request, tell)
            if here is not None and not _is_here(here):
                tell(f"note: setup has replaced this folder; enter it again: cd {shlex.quote(str(here))}")
            digest = lock_model.digest_of(found)  # as it was laid: one written by hand may spell it otherwise
        if opened is not None:
            _note_bundle(opened, found, paths)
        if packages is not None:
            packages = planned()
            install_planned(packages, named, offline=offline or opened is not None)
            python = packages.target.path if venv is not None else python
    if python is not None:
        _keep_choice(paths, python)
    built: list[BuildOutcome] | None = None
    if build:
        from npu_rl.cli.setup_build import built_components, built_json, say_built

        built = built_components(paths, found, python)
    if json:
        document = setup_json(found, digest, paths, outcome)
        if packages is not None:
            from npu_rl.stack.installation.install_plan import plan_json

            document["packages"] = plan_json(packages)
        of_builds = {} if built is None else {"built": built_json(built)}
        print_json({**document, **of_builds})
    else:
        _print(found, digest, paths, outcome)
        if built is not None:
            say_built(found, built)
        _say_faults(paths)
        if packages is not None:
            say_installed(packages)
        _say_next(found, paths)


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


def _store_of(bundle: OpenBundle | None, lock: Lock) -> Store:
    """Return the user's store, or that of a bundle."""
    if bundle is None:
        from npu_rl.stack.store import Store

        return Store()
    from npu_rl.stack.bundles.open_bundle import bundled_store

    return bundled_store(bundle, lock)


def _note_bundle(bundle: OpenBundle, lock: Lock, paths: WorkspacePaths) -> None:
    """Note a bundle that has packages, for the hint where some are missing."""
    from npu_rl.stack.lock.lock_model import digest_of
    from npu_rl.workspace.packages.install_command import keep_bundle

    if bundle.wheels is not None:
        keep_bundle(paths, bundle.path, digest_of(lock))


def _refuse_without_install(venv: Path | None, wheels: list[Path] | None, *, dry_run: bool) -> None:
    from npu_rl.common.errors import UsageError

    given = {"--venv": venv is not None, "--wheels": bool(wheels), "--dry-run": dry_run}
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"{option} is for installing packages", hint="Add --install, or leave it out.")


def _paths_to_set_up(workspace: Path | None) -> WorkspacePaths:
    """Return the named workspace, else ./npu-rl-workspace, unless that would be in another one, such as in its code."""
    from npu_rl.common.errors import HostError, UsageError
    from npu_rl.workspace.folder.discovery import find_workspace, named_folder
    from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME, WorkspacePaths

    if workspace is not None:
        return WorkspacePaths(named_folder(workspace))
    here = named_folder(Path(DEFAULT_NAME))
    try:
        found = find_workspace(None)
    except HostError:  # one of another user, which is not ours to protect
        found = None
    if found is not None and found.root != here:
        raise UsageError(
            f"This folder is in the workspace {found.root}",
            why=f"Without --workspace, setup would make another one in it: ./{DEFAULT_NAME}",
            hint=f"For that workspace, leave its folder first: cd {shlex.quote(str(found.root.parent))}\n"
            f"or name it: --workspace {shlex.quote(str(found.root))}",
        )
    return WorkspacePaths(here)


def _folder_within(root: Path) -> Path | None:
    """Return the current folder if it is in a workspace; None if not, or if it is gone."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    return here if here.is_relative_to(root) else None


def _is_here(folder: Path) -> bool:
    """Return whether the current folder still has the path that it had."""
    try:
        return folder.samefile(".")
    except OSError:
        return False


def _of_workspace(workspace: Path | None) -> tuple[str, WorkspacePaths]:
    """Return the manifest of a workspace, whose packages are to be installed, and the workspace."""
    from npu_rl.workspace.packages.workspace_manifest import workspace_manifest

    return workspace_manifest(workspace, tell)


def _absolute(python: str | None) -> str | None:
    """Return the interpreter's path; links are not followed, since a virtual environment's is one."""
    import os
    import shutil

    from npu_rl.common.errors import UsageError

    if python is None:
        return None
    found = shutil.which(python)
    if found is None:
        raise UsageError(
            f"Program not found: {python!r}", hint="--python takes the path or name of an interpreter"
        )
    return os.path.abspath(found)  # noqa: PTH100  Path.resolve would follow the link


def _keep_choice(paths: WorkspacePaths, python: str) -> None:
    from npu_rl.workspace.folder.chosen_interpreter import keep_choice

    try:
        keep_choice(paths, python)
    except (OSError, ValueError) as error:
        tell(
            f"note: the choice of {python} can't be kept in your state folder ({error}): pass --python to each command"
        )
    else:
        tell(f"Your commands in this workspace use {python}")


def _print(lock: Lock, digest: str, paths: WorkspacePaths, outcome: SetupOutcome) -> None:
    from npu_rl.workspace.folder.lock_summary import stack_lines

    if not outcome.changed:
        say(f"{paths.root} is up to date with {lock.manifest}; nothing to do.")
        say_ids(lock, digest)
        return
    for line in stack_lines(lock):
        say(line)
    if outcome.kept:
        say(f"Local changes were moved to {outcome.kept}")
    say_ids(lock, digest)
    say(f"{paths.root} is ready: {amount(outcome.received)} received, {outcome.seconds:.1f} s.")


def _say_faults(paths: WorkspacePaths) -> None:
    from npu_rl.recipes.faults.verdict import faults_line

    line = faults_line(paths.code)
    if line:
        say_folded(line, "  ")


def _say_next(lock: Lock, paths: WorkspacePaths) -> None:
    """Print the commands that prove the workspace, and train in it: on a CPU, or after a plan for other devices."""
    recipe = bundled_recipe_for(manifests_of(lock))
    at = None if _is_default(paths) else paths.root
    activate = shlex.quote(str(paths.root / "activate"))
    say_labelled(f"Next: {one_line(command_line('verify', workspace=at))}; source {one_line(activate)}\n")
    if recipe is None:  # `train` needs a recipe of the user's, and a bundled one is where it begins
        say(f"      {command_line('recipes', 'list')}   # a recipe to copy, for npu-rl train")
        return
    if lock.device != "cpu":
        say(f"      {command_line('plan', recipe, workspace=at)}")
    say(f"      {command_line('train', recipe, workspace=at)}")


def _is_default(paths: WorkspacePaths) -> bool:
    """Return whether commands in the current folder, which may be gone, find the workspace by themselves."""
    from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME

    try:
        return paths.root == Path.cwd() / DEFAULT_NAME
    except FileNotFoundError:
        return False
