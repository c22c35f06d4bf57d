"""The command `npu-rl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Workspace
from npu_rl.common.printable import counted

if TYPE_CHECKING:
    from npu_rl.training.host.workspace_environment import WorkspaceEnvironment
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
    from npu_rl.workspace.verification.verify import Report


@examples(
    "npu-rl status",
    "npu-rl status --workspace /data/r1-zero",
    "npu-rl status --json",
)
def status(workspace: Workspace = None, json: Json = False) -> None:
    """Show what a workspace is.

    It prints its manifest, ids, components, patches, local changes, and the id of its environment on this host: of all
    that decides how a training behaves. --expect takes that id.
    """
    import time

    from npu_rl.cli.show import print_json, say, tell
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.folder.local_edits import own_work
    from npu_rl.workspace.folder.lock_summary import stack_json, stack_lines
    from npu_rl.workspace.verification.verify import verify

    layout = open_workspace(workspace, tell)
    report = verify(layout, tell)
    lock, receipt = report.lock, report.receipt
    changed = len({drift.path for drift in report.drift})
    own = list(own_work(layout.root, receipt))
    environment = _environment(layout, report)
    kept = sorted(p.name for p in layout.kept.iterdir()) if layout.kept.is_dir() else []
    if json:
        print_json(
            {
                "workspace": str(layout.root),
                "manifest": lock.manifest,
                "title": lock.title,
                "device": lock.device,
                "commit": lock.commit,
                "tree": lock.tree,
                "lock": report.lock_digest,
                "clean": report.ok,
                "changed": changed,
                "own_work": own,
                "kept": kept,
                "setup": receipt.setup,
                "environment": environment.to_json() if environment else None,
                "host": dict(lock.host),
                **stack_json(lock, {}),
            }
        )
        return
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(receipt.setup.get("made", 0)))
    say(f"{layout.root}: {lock.manifest} ({lock.title})")
    say(f"  tree      {lock.tree}")
    say(f"  commit    {lock.commit}")
    say(f"  lock      {report.lock_digest}")
    say(f"  set up    {made}, npu-rl {receipt.setup.get('npu_rl')}")
    for number, line in enumerate(environment.lines() if environment else ()):
        say(f"            {line}" if number else f"  env       {line}")
    for line in stack_lines(lock):
        say(line)
    say("  clean" if report.ok else f"  {counted(changed, 'local change')}: npu-rl verify")
    for line in own:
        say(f"  yours     {line}")
    if own:
        say("  npu-rl patches export writes your commits as patches")
    for name in kept:
        say(f"  kept      {layout.kept / name}")


def _environment(paths: WorkspacePaths, report: Report) -> WorkspaceEnvironment | None:
    """Return the environment with the interpreter that `train` would take; None if it is unknown."""
    from npu_rl.cli.show import tell
    from npu_rl.common.errors import NpuRlError
    from npu_rl.training.host.workspace_environment import python_version, workspace_environment
    from npu_rl.training.run.allow_drift import drift_digest
    from npu_rl.workspace.folder.chosen_interpreter import choose

    try:
        python = choose(None, paths, report.receipt.setup)
        return workspace_environment(report, python_version(python), changed=drift_digest(paths, report))
    except NpuRlError as error:
        tell(f"note: the environment has no id here: {error.what}")
        return None
