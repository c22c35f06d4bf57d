"""npu-rl status"""

from __future__ import annotations

import time
from pathlib import Path

from npu_rl.cli.show import print_json, tell
from npu_rl.workspace.layout import find_workspace
from npu_rl.workspace.recover import recover
from npu_rl.workspace.verify import verify


def run(workspace: Path | None, as_json: bool) -> None:
    layout = find_workspace(workspace)
    recover(layout, tell)
    report = verify(layout, tell)
    lock, receipt = report.lock, report.receipt
    kept = sorted(p.name for p in layout.kept.iterdir()) if layout.kept.is_dir() else []
    if as_json:
        print_json(
            {
                "workspace": str(layout.root),
                "manifest": lock.manifest,
                "title": lock.title,
                "device": lock.device,
                "commit": lock.commit,
                "tree": lock.tree,
                "clean": report.ok,
                "changed": len({d.path for d in report.drift}),
                "kept": kept,
                "setup": receipt.setup,
            }
        )
        return
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(receipt.setup.get("made", 0)))
    print(f"{layout.root}: {lock.manifest} ({lock.title})")
    print(
        f"  tree      {lock.tree}\n  commit    {lock.commit}\n  set up    {made}, npu-rl {receipt.setup.get('npu_rl')}"
    )
    for name, component in lock.components.items():
        extra = [f"{len(component.merges)} merges"] if component.merges else []
        extra += [f"{len(component.patches)} patches"] if component.patches else []
        print(f"  {name:<16} {component.ref or component.sources[0].pypi}  {', '.join(extra)}".rstrip())
    changed = len({d.path for d in report.drift})
    print(f"  {'clean' if report.ok else f'{changed} local changes: npu-rl verify'}")
    for name in kept:
        print(f"  kept      {layout.kept / name}")
