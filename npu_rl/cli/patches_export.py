"""The command `npu-rl patches export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, ManifestOrWorkspace, Workspace
from npu_rl.cli.show import print_json, say, say_text, tell

if TYPE_CHECKING:
    from npu_rl.workspace.export.export_commits import CommitExport
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


@examples(
    "npu-rl patches export",
    "npu-rl patches export --manifest mine.yaml --workspace /data/r1-zero",
    "npu-rl patches export --json",
)
def export(
    workspace: Workspace = None,
    manifest: ManifestOrWorkspace = None,
    json: Json = False,
) -> None:
    """Write your commits as patches.

    Commits in code/ and src/NAME become files in patches/COMPONENT beside the manifest; the lines that it needs for
    them are printed. By default that is the manifest that the workspace was set up from. Nothing is written unless
    the patches give the tree of your last commit.
    """
    from npu_rl.stack.manifest.load_manifest import load_manifest
    from npu_rl.workspace.export.export_commits import export_commits, manifest_of
    from npu_rl.workspace.folder.discovery import open_workspace

    paths = open_workspace(workspace, tell)
    loaded = load_manifest(manifest or manifest_of(paths))
    report = export_commits(paths, loaded, tell)
    if json:
        print_json(report.to_json())
    else:
        _print(paths, report)


def _print(paths: WorkspacePaths, report: CommitExport) -> None:
    import shlex

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
    named = shlex.quote(report.manifest)
    workspace = shlex.quote(str(paths.root))
    say(f"Next: npu-rl lock --manifest {named}; npu-rl setup --manifest {named} --workspace {workspace}")
