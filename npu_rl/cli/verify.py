"""npu-rl verify"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from npu_rl.cli.show import print_json, tell
from npu_rl.workspace.layout import Layout, find_workspace
from npu_rl.workspace.recover import recover
from npu_rl.workspace.summary import manifest_changed
from npu_rl.workspace.verify import Report, verify


def run(workspace: Path | None, deep: bool, as_json: bool) -> None:
    layout = find_workspace(workspace)
    recover(layout, tell)
    report = verify(layout, tell, deep=deep)
    _tell_of_changes(report)
    if as_json:
        print_json(report.to_json())
    else:
        _print(layout, report)
    if not report.ok:
        raise SystemExit(3)


def _tell_of_changes(report: Report) -> None:
    manifest = Path(str(report.receipt.setup.get("manifest", "")))
    if manifest.is_file() and manifest_changed(report.lock, manifest):
        tell(f"note: {manifest.name} has changed since this workspace's lock was made.")


def _print(layout: Layout, report: Report) -> None:
    for path in report.products:
        print(f"  not ours, harmless  {path}")
    for drift in report.drift:
        whose = drift.component or "nobody's"
        hit = f", {drift.patch} hunk {drift.hunk}" if drift.patch else ""
        print(f"  {drift.kind:<10} {drift.path}  ({whose}{hit})")
    for (component, name), hunks in report.patches.items():
        states = Counter(hunk["state"] for hunk in hunks)
        told = ", ".join(f"{count} {state}" for state, count in states.items()) or "no hunks in code"
        print(f"  {component}: {name}: {told}")
        for hunk in hunks:
            if hunk["state"] not in ("in place", "superseded"):
                print(f"      {hunk['state']:<8} {hunk['file']}:{hunk['line']}")
    how = (
        "every byte read" if report.deep else f"{report.hashed} read, the others untouched since last proven"
    )
    if report.ok:
        print(f"{layout.root} equals its lock: {report.files} files ({how}).")
        print(f"tree {report.lock.tree}  commit {report.lock.commit}")
    else:
        count = len({d.path for d in report.drift})
        print(
            f"{layout.root} does not equal its lock: {count} of {report.files} files differ or are not its own."
        )
        print("Next: npu-rl diff shows the changes; npu-rl setup --discard puts them aside.")
