"""The commands `npu-rl patches`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import Json, ManifestOrWorkspace, Rewrite, Workspace, network
from npu_rl.cli.progress import Fetches
from npu_rl.cli.show import STARTS_OVER, if_interrupted, print_json, print_report, say, say_text, tell

if TYPE_CHECKING:
    from npu_rl.stack.lint.patch_targets import PatchTarget
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.port.port import PortReport
    from npu_rl.workspace.export.export_commits import CommitExport

app = group(
    "List, check, export and port patches.",
    {
        "list": "patches:list_patches",
        "new": "patches:new",
        "export": "patches:export",
        "lint": "patches:lint",
        "port": "patches:port",
    },
)


@examples("npu-rl patches list --json   # with tests, and what only an NPU can show")
def list_patches(json: Json = False) -> None:
    """List the bundled patches.

    Each entry has the patch's state in later versions. present: the patchset of that version has it. upstream: the
    version has its change. gone: a file that it changes is missing there. retired: it was dropped for another reason.
    """
    from npu_rl.common.bundled import data_root
    from npu_rl.stack.patches.patch_table import PatchList, patch_rows
    from npu_rl.stack.patches.version_columns import read_versions, version_lines

    root = data_root() / "patchsets"
    versions, rows = read_versions(root), patch_rows(root)
    if json:
        print_json(PatchList(rows, versions))
        return
    for line in version_lines(rows, versions):
        say(line)


@examples("npu-rl patches new verl/kv-cache > message; git commit -a -e -F message")
def new(
    named: Annotated[
        str, typer.Argument(metavar="COMPONENT/SLUG", help="The component, and the name of the patch's file.")
    ],
) -> None:
    """Print a new patch's header.

    The header is a commit message, whose fields you fill in. Its trailer `Patch: COMPONENT/SLUG` names the file that
    `npu-rl patches export` writes for the commit.
    """
    from npu_rl.stack.patches.message_template import message_template

    say_text(message_template(named))


# -- export -------------------------------------------------------------------------------------------


@examples("npu-rl patches export", "npu-rl patches export --manifest mine.yaml --workspace /data/r1-zero")
def export(workspace: Workspace = None, manifest: ManifestOrWorkspace = None, json: Json = False) -> None:
    """Write your commits as patches.

    Commits in code/ and src/NAME become files in patches/COMPONENT beside the manifest; the lines that it needs for
    them are printed. By default that is the manifest that the workspace was set up from. Nothing is written unless
    the patches give the tree of your last commit.
    """
    from npu_rl.stack.manifest.load_manifest import load_manifest
    from npu_rl.workspace.export.export_commits import export_commits, manifest_of
    from npu_rl.workspace.folder.discovery import open_workspace

    paths = open_workspace(workspace, tell)
    report = export_commits(paths, load_manifest(manifest or manifest_of(paths)), tell)
    if json:
        print_json(report)
    else:
        _say_export(report, paths.root)


def _say_export(report: CommitExport, workspace: Path) -> None:
    for split in report.split:
        say(f"split: {split.commit}: {', '.join(split.components)}")
    for commit in report.empty:
        say(f"no change: {commit}")
    for patch in report.patches:
        say(f"  {patch.state:<9}  {patch.component}: {patch.path}")
    for path in report.removed:
        say(f"  removed    {path}")
    if not report.written and not report.removed and not report.lines:
        say(f"{report.manifest} has the patches of your commits; nothing to write.")
        return
    if report.lines:
        say(f"Lines that {report.manifest} needs, in place of its own with these keys:")
        say_text(report.lines)
    lock = shlex.join(["npu-rl", "lock", "--manifest", report.manifest])
    setup = shlex.join(["npu-rl", "setup", "--manifest", report.manifest, "--workspace", str(workspace)])
    say(f"Next: {lock}; {setup}")


# -- lint ---------------------------------------------------------------------------------------------


@examples(
    "npu-rl patches lint patches/verl --against ../verl   # a checkout",
    "npu-rl patches lint verl/0.5.0 --against quickstart  # bundled, at its pin",
)
def lint(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|FOLDER", help="A patch, a folder of patches, or a bundled patchset."),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="MANIFEST|DIR",
            help="Apply them, too, without writing: to the files of DIR, or at their place in the lock of MANIFEST.",
        ),
    ] = None,
    strip: Annotated[
        int | None,
        typer.Option(
            "--strip",
            min=0,
            max=20,
            metavar="N",
            help="Leading folders to drop from names.  [default: that of the lock or of `series`, else 1]",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check patches before they are applied.

    It checks series, header, format and white space, and Python in new files. With --against it applies the patches,
    and checks the Python that they change.
    """
    from npu_rl.common.masking import masked_text
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.lint.lint_patches import lint_patches

    with _against(against) as files:
        report = lint_patches(
            user_path(path, "FILE|FOLDER"), strip=strip, against=files, against_name=against
        )
    if json:
        print_json(report)
    else:
        for found in report.findings:
            say_text(masked_text(found.text()) + "\n")
        say(report.summary())
    if not report.ok:
        raise SystemExit(1)


@contextmanager
def _against(name: str | None) -> Iterator[PatchTarget | None]:
    """Provide the target of the check: a folder if there is one of that name, else a manifest's lock."""
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.lint.patch_targets import LockedTrees, files_of_folder

    if name is None:
        yield None
        return
    folder = user_path(name, "--against")
    if folder.is_dir():
        with files_of_folder(folder) as files:
            yield files
        return
    from npu_rl.common.yaml_documents.document_kind import find_manifest
    from npu_rl.stack.compose.git_trees import Trees
    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.summary import summary_sources

    manifest = find_manifest(name)
    lock = lock_model.read(lock_model.lock_path(manifest))
    fetching = network(offline=False)
    with (
        Fetches() as shown,
        summary_sources.of_manifest(lock, manifest, fetching, shown, jobs=8) as stack,
        Trees(stack.repository) as trees,
    ):
        yield LockedTrees(lock, trees, manifest)


# -- port ---------------------------------------------------------------------------------------------


@examples(
    "npu-rl patches port verl --to v0.6.1 --manifest mine.yaml",
    "npu-rl patches port verl --finish   # after git rebase --continue",
)
def port(
    component: Annotated[
        str, typer.Argument(metavar="COMPONENT", help="The component whose patches are ported.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REF", help="The new version: a tag, a branch or a full commit id."),
    ] = None,
    manifest: ManifestOrWorkspace = None,
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
    from npu_rl.common.errors import UsageError
    from npu_rl.common.user_path import user_path
    from npu_rl.stack.port import port as porting
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
        report = porting.finish(store, component, place, result, accept or ())
    else:
        from npu_rl.stack.resolve.upstream_repository import Context

        loaded = _manifest(manifest)
        with Fetches() as shown:
            context = Context(store, network(rewrite, offline=False), shown, tell, loaded.path.parent)
            report = porting.begin(context, loaded, component, to, place, result)
    print_report(report, lambda: "".join(f"{line}\n" for line in _port_lines(report, folder)), as_json=json)
    if report.state != porting.FINISHED:
        raise SystemExit(1)


def _manifest(named: str | None) -> LoadedManifest:
    """Return the named manifest, else that of the workspace around this folder."""
    from npu_rl.common.errors import UsageError, WorkspaceError
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


def _port_lines(report: PortReport, folder: Path | None) -> Iterator[str]:
    from npu_rl.stack.port.port import FINISHED, STOPPED

    at = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    again = f"npu-rl patches port {report.component}{at} --finish"
    for patch in report.patches:
        yield f"{patch.patch}: {patch.outcome}"
        yield from (f"  {question}" for question in patch.questions)
    if report.state == STOPPED:
        yield f"The rebase in {report.folder} has stopped at {report.stopped_at or 'a commit of yours'}"
        yield from (f"  conflict: {path}" for path in report.conflicts)
        for path, places in report.moved.items():
            yield f"{path} is gone" + (f"; it may be {' or '.join(places)} now" if places else "")
        for name, value in report.header.items():
            yield f"{name}: {' '.join(value.split())}"
        yield "Resolve the conflicts with git:"
        yield f"  cd {shlex.quote(report.folder)}"
        yield "  git add FILE, or git rm FILE"
        yield "  git rebase --continue (or --skip, which leaves the patch out, or --abort)"
        yield f"When the rebase has ended, back here: {again}"
    elif report.state == FINISHED:
        if report.written:
            yield f"Written to {Path(report.written[0]).parent}"
        place = report.manifest or "a manifest that extends the bundled one"
        yield f"In {place}, under components: {report.component}:"
        yield f"    ref: {report.ref}"
        yield f"    patches: [{report.entry or ''}]"
        yield f"Then: npu-rl lock --manifest {shlex.quote(report.manifest or 'M')}"
    else:
        asking = " ".join(f"--accept {shlex.quote(one.patch)}" for one in report.patches if one.questions)
        yield f"Look at these patches in {report.folder}, whose branch `port` has a commit for each."
        yield "To correct one: edit, git commit -a --fixup COMMIT, git rebase -i --autosquash refs/npu-rl/new"
        yield f"Then, or if they are right: {again} {asking}"
