"""The command `npu-rl patches port`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import GOES_ON, if_interrupted
from npu_rl.cli.options import MANIFEST_HELP, Json, Rewrite, manifest_names, network
from npu_rl.cli.show import print_report, say, tell, watcher
from npu_rl.common.errors import UsageError, WorkspaceError

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.port_series.port_folder import PortFolder
    from npu_rl.stack.port_series.port_patches import Port
    from npu_rl.stack.sources.progress import Watcher


def _program(given: str | None) -> str | None:
    from npu_rl.common.user_path import program_path

    return None if given is None else program_path(given)


@examples(
    "npu-rl patches port verl --to v0.6.1 --manifest mine.yaml",
    "npu-rl patches port verl --continue   # conflicts are solved",
    "npu-rl patches port verl --to v0.6.1 --verify --python ~/venv/bin/python",
)
def port(
    component: Annotated[
        str, typer.Argument(metavar="COMPONENT", help="The component whose patches are ported.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REF", help="The new version: a tag, a branch or a full commit id."),
    ] = None,
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="MANIFEST",
            help=MANIFEST_HELP,
            autocompletion=manifest_names,
        ),
    ] = None,
    go_on: Annotated[
        bool,
        typer.Option("--continue", help="Take the work tree as the result of the stopped patch."),
    ] = False,
    skip: Annotated[bool, typer.Option("--skip", help="Leave out the stopped patch.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Remove the port and its work tree.")] = False,
    no_history: Annotated[
        bool,
        typer.Option("--no-history", help="Fetch no commits between the versions, and name none."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder of the port and its work tree.  [default: npu-rl-port/COMPONENT]",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The folder for the new patchset.  [default: patches/COMPONENT/VERSION beside the manifest]",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the tests that the ported patches name, in --python.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PYTHON", help="The interpreter to run these tests in.", callback=_program
        ),
    ] = None,
    rewrite: Rewrite = None,
    json: Json = False,
) -> None:
    """Port patches to another version.

    Each hunk is exact, moved, merged, in conflict, already upstream, or its target is gone. The first patch that needs
    you stops the port, with exit code 1 and the files to edit. The end is a new patchset.
    """
    _check_options(go_on, skip, abort, verify, python)
    place = _place(component, folder)
    if_interrupted(GOES_ON)
    if abort:
        _abort(place, component)
        return
    if go_on or skip:
        _require(place, component)
    with watcher() as shown:
        made = _port(place, manifest, output, rewrite, shown)
        if go_on or skip:
            report = made.go_on(component) if go_on else made.skip(component)
        else:
            report = made.run(component, to, history=not no_history)
    if verify and python is not None and report.is_finished:
        report = made.verified(report, python)
    elif verify:
        tell("note: no test has run: --verify runs them when no patch is left to port")
    print_report(report.to_json(), report.text(), as_json=json)
    made.shown()
    if not report.ok:
        raise SystemExit(1)


def _check_options(go_on: bool, skip: bool, abort: bool, verify: bool, python: str | None) -> None:
    if go_on + skip + abort > 1:
        raise UsageError("--continue, --skip and --abort exclude each other", hint="Give one of them.")
    if verify != (python is not None):
        raise UsageError(
            "--verify and --python need each other",
            hint="Tests run only in an interpreter that you name: --verify --python PYTHON",
        )


def _require(place: PortFolder, component: str) -> None:
    from npu_rl.stack.port_series.port_patches import require_port

    require_port(place, component)


def _place(component: str, folder: Path | None) -> PortFolder:
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.port_series.port_folder import USUAL, PortFolder

    return PortFolder(Path(USUAL, component) if folder is None else user_path(folder, "--folder"))


def _port(
    place: PortFolder, manifest: str | None, output: Path | None, rewrite: list[str] | None, shown: Watcher
) -> Port:
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.port_series.port_patches import Port
    from npu_rl.stack.resolve.upstream_repository import Context
    from npu_rl.stack.store import Store

    loaded = _manifest(manifest, place)
    store = Store()
    store.sweep()
    context = Context(store, network(rewrite, offline=False), shown, tell, loaded.path.parent)
    return Port(place, context, loaded, None if output is None else user_path(output, "--output"))


def _manifest(named: str | None, place: PortFolder) -> LoadedManifest:
    """Return the named manifest, else the port's own, else that of the workspace around this folder."""
    from npu_rl.stack.manifest.load_manifest import load_manifest

    if named is None and place.is_there:
        state = place.read()
        named = None if state is None else state.manifest
    if named is None:
        from npu_rl.workspace.export.export_commits import manifest_of
        from npu_rl.workspace.folder.discovery import open_workspace

        try:
            named = manifest_of(open_workspace(None, tell))
        except (UsageError, WorkspaceError) as error:
            hint = "Name it: --manifest FILE. After `lock`, a workspace knows its manifest again when `setup` has run."
            raise UsageError(
                "Missing option --manifest", why="\n".join(filter(None, (error.what, error.why))), hint=hint
            ) from error
    return load_manifest(named)


def _abort(place: PortFolder, component: str) -> None:
    from npu_rl.stack.port_series.port_patches import remove_port

    left = remove_port(place, component)
    say(f"{place.root}: the port is removed.")
    for path in left:
        say(f"  left, since npu-rl did not write it: {path}")
