"""The command `npu-rl setup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Jobs, Json, Manifest, Offline, Python, Rewrite, Workspace, network
from npu_rl.cli.show import amount, print_json, say, tell, watcher

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.workspace.builds.build_components import BuildOutcome
    from npu_rl.workspace.folder.up_to_date import Outcome
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@examples(
    "npu-rl setup --manifest quickstart",
    "npu-rl setup --manifest deepseek-r1-zero --python /opt/train/bin/python",
    "npu-rl setup -m ./my.yaml --build --python /opt/train/bin/python",
)
def setup(
    manifest: Manifest,
    workspace: Workspace = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock", metavar="LOCK", help="The lock to use.  [default: NAME.lock.json beside the manifest]"
        ),
    ] = None,
    jobs: Jobs = 8,
    offline: Offline = False,
    rewrite: Rewrite = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Move local edits to .npu-rl/kept/TIME.")
    ] = False,
    python: Python = None,
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="Also run the manifest's build commands, which are upstream's own code; see docs/build.md.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Fetch and assemble the locked stack.

    Writes ./npu-rl-workspace unless --workspace names another folder. One that is up to date is left as it is.
    """
    import time

    from npu_rl.stack.lock import lock_model
    from npu_rl.stack.manifest.manifest_kind import find_manifest
    from npu_rl.workspace.folder.discovery import named_folder, require_trust
    from npu_rl.workspace.folder.lock_summary import manifest_changed, setup_json
    from npu_rl.workspace.folder.up_to_date import Outcome, untouched
    from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME, WorkspacePaths

    path = find_manifest(manifest)
    place = lock or lock_model.lock_path(path)
    text = lock_model.read_text(place)
    found, digest = lock_model.parse_with_digest(text, str(place))
    if manifest_changed(found, path):
        tell(f"note: {path.name} has changed since its lock was made; the lock is what is set up.")
    paths = WorkspacePaths(named_folder(workspace or Path(DEFAULT_NAME)))
    if workspace is None:
        require_trust(paths)
    started = time.monotonic()
    python = _absolute(python)
    if untouched(paths, text, python):
        outcome = Outcome(False, seconds=time.monotonic() - started)
    else:
        from npu_rl.workspace.folder.setup import Request, run

        with watcher() as shown:
            fetching = network(rewrite, offline=offline)
            request = Request(found, paths, path, fetching, shown, jobs, discard, python)
            outcome = run(request, tell)
        digest = lock_model.digest_of(found)  # as it was laid: one written by hand may spell it otherwise
    if python is not None:
        _keep_choice(paths, python)
    built = _build(paths, found, python) if build else []
    if json:
        of_builds = {"built": [_build_json(one) for one in built]} if build else {}
        print_json({**setup_json(found, digest, paths, outcome), **of_builds})
    else:
        _print(found, digest, paths, outcome)
        _say_builds(found, built, build)
        _say_faults(paths)


def _build(paths: WorkspacePaths, lock: Lock, python: str | None) -> list[BuildOutcome]:
    from npu_rl.training.run.interpreter import probe
    from npu_rl.workspace.builds.build_components import Builder, build_components
    from npu_rl.workspace.folder.chosen_interpreter import choose

    if not any(component.build for component in lock.components.values()):
        return []
    found = probe(choose(python, paths), ())
    builder = Builder(found.path, ".".join(map(str, found.version)))
    return build_components(paths, lock, builder, tell)


def _build_json(outcome: BuildOutcome) -> dict[str, object]:
    products = [{"path": one.path, "sha256": one.sha256, "size": one.size} for one in outcome.products]
    return {"component": outcome.component, "already": outcome.already, "products": products}


def _say_builds(lock: Lock, built: list[BuildOutcome], asked: bool) -> None:
    for outcome in built:
        how = "built already" if outcome.already else "built"
        for product in outcome.products:
            say(
                f"  {how}  {product.path}  ({outcome.component}, {amount(product.size)}, {product.sha256[:12]})"
            )
    if asked and not built:
        say(f"{lock.manifest} has no build commands.")


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


def _print(lock: Lock, digest: str, paths: WorkspacePaths, outcome: Outcome) -> None:
    from npu_rl.workspace.folder.lock_summary import stack_lines

    if not outcome.changed:
        say(f"{paths.root} is up to date with {lock.manifest}; nothing to do.")
        _say_ids(lock, digest)
        return
    for line in stack_lines(lock):
        say(line)
    if outcome.kept:
        say(f"Local changes were moved to {outcome.kept}")
    _say_ids(lock, digest)
    say(f"{paths.root} is ready: {amount(outcome.received)} received, {outcome.seconds:.1f} s.")
    say(f"Next: npu-rl verify --workspace {paths.root}; source {paths.root}/activate")


def _say_faults(paths: WorkspacePaths) -> None:
    from npu_rl.recipes.faults.fault_counts import faults_line

    line = faults_line(paths.code)
    if line:
        say(line)


def _say_ids(lock: Lock, digest: str) -> None:

    say(f"tree {lock.tree}  commit {lock.commit}")
    say(f"lock {digest}")
