"""The command `npu-rl patches port`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted
from npu_rl.cli.options import MANIFEST_HELP, Json, Rewrite, manifest_names, network
from npu_rl.cli.show import print_report, tell, watcher
from npu_rl.common.errors import UsageError, WorkspaceError

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.port.port import PortReport


@examples(
    "npu-rl patches port verl --to v0.6.1 --manifest mine.yaml",
    "npu-rl patches port verl --finish   # after git rebase --continue",
    "npu-rl patches port verl --finish --accept 0003-rollout-offload.patch",
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
    finish: Annotated[
        bool, typer.Option("--finish", help="Write the new patchset of a port whose rebase has ended.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept", metavar="PATCH", help="A patch whose questions you have answered; repeatable."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Folder of a port that needs you.  [default: npu-rl-port-COMPONENT]",
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
    rewrite: Rewrite = None,
    json: Json = False,
) -> None:
    """Rebase patches onto another version.

    Without a conflict one command writes the new patchset. Otherwise it leaves a git repository, where you resolve the
    conflicts with git, and exits with 1; --finish then writes the patchset.
    """
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.port.port import FINISHED
    from npu_rl.stack.port.port import begin as begin_port
    from npu_rl.stack.port.port import finish as finish_port
    from npu_rl.stack.store import Store

    if (to is not None) == finish:
        raise UsageError("--to or --finish is needed, and only one", hint="Begin a port: --to REF")
    if accept and not finish:
        raise UsageError("--accept needs --finish", hint="First see what the port asks: --to REF")
    place = (Path(f"npu-rl-port-{component}") if folder is None else user_path(folder, "--folder")).absolute()
    result = None if output is None else user_path(output, "--output")
    store = Store()
    store.sweep()
    if_interrupted(STARTS_OVER)
    if to is None:
        report = finish_port(store, component, place, result, accept or ())
    else:
        from npu_rl.stack.resolve.upstream_repository import Context

        loaded = _manifest(manifest)
        with watcher() as shown:
            context = Context(store, network(rewrite, offline=False), shown, tell, loaded.path.parent)
            report = begin_port(context, loaded, component, to, place, result)
    print_report(asdict(report), "".join(f"{line}\n" for line in _lines(report, folder)), as_json=json)
    if report.state != FINISHED:
        raise SystemExit(1)


def _manifest(named: str | None) -> LoadedManifest:
    """Return the named manifest, else that of the workspace around this folder."""
    from npu_rl.stack.manifest.load_manifest import load_manifest

    if named is None:
        from npu_rl.workspace.export.export_commits import manifest_of
        from npu_rl.workspace.folder.discovery import open_workspace

        try:
            named = manifest_of(open_workspace(None, tell))
        except (UsageError, WorkspaceError) as error:
            hint = "Name it: --manifest FILE. After `lock`, a workspace knows its manifest again when `setup` has run."
            why = "\n".join(filter(None, (error.what, error.why)))
            raise UsageError("Missing option --manifest", why=why, hint=hint) from error
    return load_manifest(named)


def _lines(report: PortReport, folder: Path | None) -> Iterator[str]:
    from npu_rl.stack.port.port import FINISHED, STOPPED

    at = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    again = f"npu-rl patches port {report.component}{at} --finish"
    for patch in report.patches:
        yield f"{patch.patch}: {patch.outcome}"
        yield from (f"  {question}" for question in patch.questions)
    if report.state == STOPPED:
        yield from _stop(report, again)
    elif report.state == FINISHED:
        yield from _end(report)
    else:
        asking = " ".join(f"--accept {shlex.quote(one.patch)}" for one in report.patches if one.questions)
        yield f"Look at these patches in {report.folder}, whose branch `port` has a commit for each."
        yield "To correct one: edit, git commit -a --fixup COMMIT, git rebase -i --autosquash refs/npu-rl/new"
        yield f"Then, or if they are right: {again} {asking}"


def _stop(report: PortReport, again: str) -> Iterator[str]:
    yield f"The rebase in {report.folder} has stopped at {report.stopped_at or 'a commit of yours'}"
    yield from (f"  conflict: {path}" for path in report.conflicts)
    for path, places in report.moved.items():
        yield f"{path} is gone" + (f"; it may be {' or '.join(places)} now" if places else "")
    for name, value in report.header.items():
        yield f"{name}: {' '.join(value.split())}"
    yield "Resolve the conflicts with git:"
    yield f"  cd {shlex.quote(str(report.folder))}"
    yield "  git add FILE, or git rm FILE"
    yield "  git rebase --continue (or --skip, which leaves the patch out, or --abort)"
    yield f"When the rebase has ended, back here: {again}"


def _end(report: PortReport) -> Iterator[str]:
    if report.written:
        yield f"Written to {Path(report.written[0]).parent}"
    place = "a manifest that extends the bundled one" if report.manifest is None else report.manifest
    yield f"In {place}, under components: {report.component}:"
    yield f"    ref: {report.ref}"
    yield f"    patches: [{report.entry or ''}]"
    yield f"Then: npu-rl lock --manifest {'M' if report.manifest is None else shlex.quote(report.manifest)}"
