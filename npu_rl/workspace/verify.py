"""`verify`: prove that a workspace equals its lock; where it doesn't, say what, whose, and which hunk.

Everything needed is in the receipt, so a copied folder without any git repository can be proven too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from npu_rl.disk import disk_errors, write_atomically
from npu_rl.errors import NpuRlError, WorkspaceError
from npu_rl.manifest.lock import Component, Lock
from npu_rl.objects import Entry, nested
from npu_rl.workspace import check
from npu_rl.workspace.layout import Layout, exclusive
from npu_rl.workspace.receipt import Receipt, read_lock, read_receipt

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Drift:
    """One thing that is not as locked. `path` from the workspace; `patch` and `hunk` if a hunk is hit."""

    path: str
    kind: str
    component: str | None
    patch: str | None = None
    hunk: int | None = None


@dataclass
class Report:
    """What verify found. `patches`: (component, patch) → hunks as {file, line, state}, in stack order."""

    lock: Lock
    receipt: Receipt
    deep: bool
    drift: list[Drift] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    patches: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    files: int = 0
    hashed: int = 0

    @property
    def ok(self) -> bool:
        return not self.drift

    def to_json(self) -> dict[str, Any]:
        """The documented form."""
        return {
            "ok": self.ok,
            "commit": self.lock.commit,
            "tree": self.lock.tree,
            "drift": [
                {"path": d.path, "kind": d.kind, "component": d.component, "patch": d.patch, "hunk": d.hunk}
                for d in self.drift
            ],
            "patches": [
                {"component": component, "name": name, "hunks": hunks}
                for (component, name), hunks in self.patches.items()
            ],
        }


def verify(layout: Layout, tell: Tell, *, deep: bool = False) -> Report:
    """Look at every file of the workspace. Raises WorkspaceError, LockError, HostError if it can't be judged.

    A setup that swaps the workspace meanwhile is waited for, and what it put in place is judged.
    """
    before = _identity(layout)
    try:
        with disk_errors(layout.root):
            report = _verify(layout, deep)
        if report.ok or (before is not None and _identity(layout) == before):
            return report
    except NpuRlError:
        if before is not None and _identity(layout) == before:
            raise
    with exclusive(layout, tell), disk_errors(layout.root):
        return _verify(layout, deep)


def _identity(layout: Layout) -> tuple[int, int] | None:
    """Tells one setup's receipt from another's; None while a swap goes on."""
    try:
        found = layout.receipt.stat()
    except OSError:
        return None
    return None if layout.journal.exists() else (found.st_ino, found.st_ctime_ns)


def _verify(layout: Layout, deep: bool) -> Report:
    started = time.monotonic_ns()
    lock = read_lock(layout)
    receipt = read_receipt(layout)
    _check_receipt(lock, receipt, layout)
    known = {} if deep else check.read_stats(layout.stat, receipt.digest)
    if not known:
        _prove_receipt(lock, receipt, layout)
    report = Report(lock, receipt, deep)
    stats: dict[str, dict[str, check.Stat]] = {}
    changed: dict[str, set[str]] = {}
    for root, expected in receipt.files.items():
        findings = check.examine_root(layout.root, root, expected, known.get(root, {}), deep=deep)
        stats[root] = findings.stats
        changed[root] = {d.path for d in findings.drift}
        report.files += len(expected)
        report.hashed += findings.hashed
        report.products += [f"{root}/{p}" for p in findings.products]
        report.drift += [
            Drift(f"{root}/{d.path}" if d.path else root, d.kind, owner(lock, root, d.path, d.kind))
            for d in findings.drift
        ]
    _judge_hunks(layout, receipt, lock, changed, report)
    if report.hashed:
        _remember(layout, stats, known, receipt.digest, time.monotonic_ns() - started)
    return report


def _check_receipt(lock: Lock, receipt: Receipt, layout: Layout) -> None:
    full = {f"src/{name}": c.result for name, c in lock.components.items() if c.checkout == "full"}
    if receipt.trees != {"code": lock.tree, **full} or set(receipt.files) != set(receipt.trees):
        raise WorkspaceError(
            "The receipt and the lock of this workspace do not belong together",
            where=str(layout.hidden),
            hint="Set the workspace up again: npu-rl setup",
        )


def _prove_receipt(lock: Lock, receipt: Receipt, layout: Layout) -> None:
    """The receipt's files must give the lock's trees: then a file that is as the receipt says is as locked."""
    for root, expected in receipt.files.items():
        *_, (found, _) = nested((p, Entry(m, i)) for p, (m, i) in expected.items())
        if found != receipt.trees[root]:
            raise WorkspaceError(
                f"The receipt does not describe the locked tree of {root}",
                where=str(layout.receipt),
                why=f"Its files give {found}, locked is {receipt.trees[root]}.",
                hint="Set the workspace up again: npu-rl setup",
            )
    locked = {patch.sha256 for _, patch in lock.patches()}
    texts = {sha256(text.encode("utf-8", "surrogateescape")).hexdigest() for text in receipt.texts.values()}
    if not locked <= texts:
        raise WorkspaceError(
            "The receipt does not have the texts of the locked patches",
            where=str(layout.receipt),
            hint="Set the workspace up again: npu-rl setup",
        )


def owner(lock: Lock, root: str, path: str, kind: str = "") -> str | None:
    """The component a path of the workspace belongs to, by what each takes; None for none.

    A stray file at the top is nobody's, even if a component is laid there.
    """
    if root.startswith("src/"):
        return root[len("src/") :]
    top = path.partition("/")[0]
    if top == "npu_rl_runtime":
        return top
    if top.endswith(".dist-info"):
        return _dist_owner(lock, top)
    best: tuple[int, str | None] = (0 if kind == "untracked" else -1, None)
    for name, component in lock.components.items():
        depth = _depth(component, path)
        if depth > best[0]:
            best = (depth, name)
    return best[1]


def _dist_owner(lock: Lock, folder: str) -> str | None:
    from npu_rl.compose.dist import dist_info

    for name, component in lock.components.items():
        if component.dist and any(p.startswith(folder + "/") for p in dist_info(component.dist)):
            return name
    return None


def _depth(component: Component, path: str) -> int:
    depths = [-1]
    for take in component.take:
        if take.to == ".":
            depths.append(0)
        elif path == take.to or path.startswith(take.to + "/"):
            depths.append(len(take.to))
    return max(depths)


def _judge_hunks(
    layout: Layout, receipt: Receipt, lock: Lock, changed: dict[str, set[str]], report: Report
) -> None:
    """The state of every hunk: read off the receipt for a file that is as locked, off the text otherwise."""
    hit: list[Drift] = []
    explained: set[str] = set()
    for record in receipt.hunks:
        root, file = record["root"], record["file"]
        key = (record["component"], record["patch"])
        if file in changed[root] or "" in changed[root]:
            state, line = _state(record, layout.root / root / file)
            if state not in ("in place", "superseded"):
                path = f"{root}/{file}"
                kind = next((d.kind for d in report.drift if d.path in (path, root)), "modified")
                hit.append(Drift(path, kind, record["component"], record["patch"], record["hunk"]))
                explained.add(path)
        else:
            state, line = record["state"], record["line"]
        shown = file if root == "code" else f"{root}/{file}"
        report.patches.setdefault(key, []).append({"file": shown, "line": line, "state": state})
    for component, patch in lock.patches():
        report.patches.setdefault((component, patch.name), [])
    rest = [d for d in report.drift if d.path not in explained]
    report.drift = sorted(rest + hit, key=lambda d: (d.path, d.component or "", d.patch or "", d.hunk or 0))


def _state(record: Mapping[str, Any], path: Path) -> tuple[str, int]:
    from npu_rl.patches.hunks import HunkRecord, state

    plain = {k: v for k, v in record.items() if k != "root"}
    try:
        current = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    except OSError:
        current = None
    found = state(HunkRecord.from_json(plain), current)
    return found.state, found.line


def _remember(
    layout: Layout,
    stats: Mapping[str, Mapping[str, check.Stat]],
    known: Mapping[str, Mapping[str, check.Stat]],
    receipt: str,
    elapsed: int,
) -> None:
    """Spare the next verify the reading. A workspace that can't be written to is verified all the same.

    elapsed: ns since before the first file was looked at; one that changed since then is not settled.
    """
    try:
        began = check.file_system_time(layout.hidden) - elapsed
        text = check.dump_stats(stats, began, receipt, margin=check.CACHED_NS, known=known)
        write_atomically(layout.stat, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass
