"""The command `npu-rl status`."""

from __future__ import annotations

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Workspace
from npu_rl.common.printable import counted


@examples(
    "npu-rl status",
    "npu-rl status --workspace /data/r1-zero",
    "npu-rl status --json",
)
def status(workspace: Workspace = None, json: Json = False) -> None:
    """Show what a workspace is.

    Its manifest, ids, components, patches and local changes.
    """
    import time

    from npu_rl.cli.show import print_json, say, tell
    from npu_rl.workspace.folder.chosen_interpreter import chosen_for
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.folder.local_edits import own_work
    from npu_rl.workspace.folder.lock_summary import stack_json, stack_lines
    from npu_rl.workspace.packages.install_command import interrupted_line
    from npu_rl.workspace.verification.verify import verify

    layout = open_workspace(workspace, tell)
    report = verify(layout, tell)
    lock, receipt = report.lock, report.receipt
    changed = len({drift.path for drift in report.drift})
    own = list(own_work(layout.root, receipt))
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
    for line in stack_lines(lock):
        say(line)
    say("  clean" if report.ok else f"  {counted(changed, 'local change')}: npu-rl verify")
    interrupted = interrupted_line(chosen_for(layout))
    if interrupted:
        say(f"  packages  {interrupted}")
    for line in own:
        say(f"  yours     {line}")
    if own:
        say("  npu-rl patches export writes your commits as patches")
    for name in kept:
        say(f"  kept      {layout.kept / name}")
