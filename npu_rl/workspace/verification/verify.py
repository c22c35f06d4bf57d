"""The command `verify`: compare a workspace with its lock, and report component and hunk of each difference.

The receipt has everything that is needed, so a copy without any git repository can be verified too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import read_file
from npu_rl.common.disk import disk_errors, write_atomically
from npu_rl.common.errors import NpuRlError, WorkspaceError
from npu_rl.stack.git.objects import Entry, MalformedObject, nested
from npu_rl.stack.lock.lock_model import Lock, LockedComponent
from npu_rl.workspace.folder import file_check, laid_files
from npu_rl.workspace.folder.built_products import BUILT, STALE, built_products
from npu_rl.workspace.folder.laid_files import examine_laid_root
from npu_rl.workspace.folder.receipt import Receipt, again_hint, read_lock, read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

if TYPE_CHECKING:
    from npu_rl.stack.sources.progress import Notify
    from npu_rl.workspace.verification.expected_digest import Expected

Progress = Callable[[int, int], None]  # files that were looked at, of how many


@dataclass(frozen=True)
class Drift:
    """One difference from the lock. `path` is relative to the workspace; `patch` and `hunk` name an affected hunk."""

    path: str
    kind: str
    component: str | None
    patch: str | None = None
    hunk: int | None = None


@dataclass(frozen=True)
class PatchState:
    """A locked patch and its hunks, each as {file, line, state}."""

    component: str
    name: str
    hunks: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Report:
    """The result of a verification, which `verify` prints.

    Attributes:
        lock_digest: The digest for `--expect`; it covers the whole lock, its environment included.
        ignored, byte_code: As in `file_check.Findings`, with paths in the workspace.
        stats: `stat` results of unchanged files, by root.
        built: By path, what has become of each product of a build: built here, stale, modified or missing.
        patches: In stack order.
        own_work: The user's own commits, branches and stash, one line each, where `verify` prints them.
        imports: What --imports found.
    """

    lock: Lock
    lock_digest: str
    receipt: Receipt = field(repr=False)
    deep: bool
    drift: list[Drift] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)
    byte_code: list[str] = field(default_factory=list)
    stats: dict[str, dict[str, file_check.Stat]] = field(default_factory=dict, repr=False)
    patches: list[PatchState] = field(default_factory=list)
    built: dict[str, str] = field(default_factory=dict)
    files: int = 0
    hashed: int = 0
    own_work: list[str] = field(default_factory=list)
    imports: object = None

    @property
    def ok(self) -> bool:
        """Return whether the workspace equals its lock."""
        return not self.drift


def verify(
    paths: WorkspacePaths,
    notify: Notify,
    *,
    deep: bool = False,
    expect: Expected | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check every file of the workspace. Raises WorkspaceError, LockError, HostError if it can't be verified.

    If a setup swaps the workspace meanwhile, its result is verified.

    Args:
        deep: Read every byte.
        expect: What is expected of the workspace, of which the lock is compared here. Everything in a workspace can
            be forged, so this also reads every byte.
        progress: Called while many files are read.
    """
    before = _identity(paths)
    try:
        with disk_errors(paths.root):
            report = _verify(paths, deep, expect, progress)
        if report.ok or (before is not None and _identity(paths) == before):
            return report
    except NpuRlError as error:
        went_away = isinstance(error.__cause__, FileNotFoundError)  # between two looks at it
        if before is not None and _identity(paths) == before and not went_away:
            raise
    from npu_rl.workspace.folder.workspace_lock import settled

    with settled(paths, notify), disk_errors(paths.root):
        return _verify(paths, deep, expect, progress)


def _identity(paths: WorkspacePaths) -> tuple[int, int] | None:
    """Return a key of the receipt file that changes with every setup; None during a swap."""
    try:
        found = paths.receipt.stat()
    except OSError:
        return None
    return None if paths.is_swapping else (found.st_ino, found.st_ctime_ns)


def _verify(paths: WorkspacePaths, deep: bool, expect: Expected | None, progress: Progress | None) -> Report:
    started = time.monotonic_ns()
    deep = deep or expect is not None
    lock, digest = read_lock(paths)
    if expect is not None and expect.lock is not None:
        from npu_rl.workspace.verification.expected_digest import require_lock

        require_lock(paths, digest, expect.lock)
    receipt = read_receipt(paths)
    _check_receipt(lock, digest, receipt, paths)
    if expect is not None:
        from npu_rl.workspace.verification.expected_digest import require_covered_products

        require_covered_products(paths, receipt, expect)
    known = {} if deep else file_check.read_stats(paths.stat, receipt.digest)
    if not known:
        _prove_receipt(lock, receipt, paths)
    report = Report(lock, digest, receipt, deep, files=sum(map(len, receipt.files.values())))
    changed: dict[str, set[str]] = {}
    advance = _counting(progress, report.files)
    for root in receipt.files:
        findings, built = examine_laid_root(paths.root, root, receipt, known.get(root, {}), advance)
        report.built |= built
        report.stats[root] = findings.stats
        changed[root] = {d.path for d in findings.drift}
        report.hashed += findings.hashed
        report.ignored |= {f"{root}/{path}": what for path, what in findings.ignored.items()}
        report.byte_code += [f"{root}/{p}" for p in findings.byte_code]
        report.drift += [
            Drift(f"{root}/{d.path}" if d.path else root, d.kind, owner(lock, root, d.path, d.kind))
            for d in findings.drift
        ]
    _judge_products(lock, receipt, report)
    packs = known.get(laid_files.PACKS, {})
    around = laid_files.check_laid_files(paths.root, receipt.files, receipt.setup, packs)
    report.drift += [Drift(d.path, d.kind, None) for d in around.drift]
    if expect is not None:
        from npu_rl.workspace.verification.expected_digest import is_expected_script

        if not is_expected_script(paths, lock) and not any(d.path == "activate" for d in around.drift):
            report.drift.append(Drift("activate", "modified", None))
    _judge_hunks(paths, receipt, lock, changed, report)
    if report.hashed or around.read:
        stats = {**report.stats, laid_files.PACKS: around.stats}
        _write_stats(paths, stats, known, receipt.digest, time.monotonic_ns() - started)
    return report


def _judge_products(lock: Lock, receipt: Receipt, report: Report) -> None:
    """Mark products as stale if their sources or commands changed, in the lock or on disk."""
    changed = {drift.component for drift in report.drift if drift.path not in report.built}
    for path, product in built_products(receipt.setup).items():
        if report.built.get(path) == BUILT and (product.component in changed or not product.is_current(lock)):
            report.built[path] = STALE


def _counting(progress: Progress | None, total: int) -> file_check.Advance:
    """Return a callback that adds up counts and reports the total to `progress`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return advance


def _check_receipt(lock: Lock, digest: str, receipt: Receipt, paths: WorkspacePaths) -> None:
    full = {f"src/{name}": c.result for name, c in lock.components.items() if c.checkout == "full"}
    laid_from = receipt.setup.get("lock", digest)
    if receipt.trees != {"code": lock.tree, **full} or laid_from != digest:
        raise WorkspaceError(
            "The receipt of this workspace does not match its lock",
            where=str(paths.hidden),
            hint=again_hint(paths, receipt.setup),
        )


def _prove_receipt(lock: Lock, receipt: Receipt, paths: WorkspacePaths) -> None:
    """Raise WorkspaceError unless the receipt's files match the lock's trees."""

    def refused(what: str, why: str | None = None) -> WorkspaceError:
        return WorkspaceError(what, where=str(paths.receipt), why=why, hint=again_hint(paths, receipt.setup))

    for root, expected in receipt.files.items():
        try:
            *_, (found, _) = nested((p, Entry(m, i)) for p, (m, i) in expected.items())
        except MalformedObject as error:  # a file and a folder of one name; folders without end
            raise refused("The receipt can't be read", str(error)) from error
        if found != receipt.trees[root]:
            why = f"Its files give {found}, the lock has {receipt.trees[root]}."
            raise refused(f"The receipt does not describe the locked tree of {root}", why)
    locked = {patch.sha256 for _, patch in lock.patches()}
    texts = {sha256(text.encode("utf-8", "surrogateescape")).hexdigest() for text in receipt.texts.values()}
    if not locked <= texts:
        raise refused("The receipt lacks the text of a locked patch")


def owner(lock: Lock, root: str, path: str, kind: str = "") -> str | None:
    """Return the component of a path in the workspace, by the taken paths, or None.

    An untracked file at the top level belongs to none, even if a component is there.
    """
    if root.startswith("src/"):
        return root[len("src/") :]
    top = path.partition("/")[0]
    if top == "npu_rl_runtime":
        return top
    if top.endswith(".dist-info"):
        return _dist_owner(lock, top)
    depths = {name: _depth(component, path) for name, component in lock.components.items()}
    name = max(depths, key=depths.__getitem__, default=None)
    return name if name is not None and depths[name] > (0 if kind == "untracked" else -1) else None


def _dist_owner(lock: Lock, folder: str) -> str | None:
    from npu_rl.stack.compose.assemble import dist_info

    named = ((name, part.dist) for name, part in lock.components.items() if part.dist)
    owners = (name for name, dist in named if any(p.startswith(f"{folder}/") for p in dist_info(dist)))
    return next(owners, None)


def _depth(component: LockedComponent, path: str) -> int:
    folders = ("" if take.to == "." else f"{take.to}/" for take in component.take)
    return max((len(folder) for folder in folders if f"{path}/".startswith(folder)), default=-1)


def _judge_hunks(
    paths: WorkspacePaths, receipt: Receipt, lock: Lock, changed: dict[str, set[str]], report: Report
) -> None:
    """Report the state of every hunk, from the receipt if its file is unchanged, else from the file's text."""
    damaged_hunks: list[Drift] = []
    explained: set[str] = set()
    patches: dict[tuple[str, str], PatchState] = {}
    for record in receipt.hunks:
        root, file = record["root"], record["file"]
        key = (record["component"], record["patch"])
        if file in changed[root] or "" in changed[root]:
            state, line = _state(record, paths.root / root / file)
            if state not in ("in place", "superseded"):
                path = f"{root}/{file}"
                kind = next((d.kind for d in report.drift if d.path in (path, root)), "modified")
                damaged_hunks.append(Drift(path, kind, record["component"], record["patch"], record["hunk"]))
                explained.add(path)
        else:
            state, line = record["state"], record["line"]
        shown = file if root == "code" else f"{root}/{file}"
        of_patch = patches.setdefault(key, PatchState(*key))
        of_patch.hunks.append({"file": shown, "line": line, "state": state})
    for component, patch in lock.patches():
        patches.setdefault((component, patch.name), PatchState(component, patch.name))
    report.patches += patches.values()
    rest = [d for d in report.drift if d.path not in explained]
    report.drift = sorted(
        rest + damaged_hunks, key=lambda d: (d.path, d.component or "", d.patch or "", d.hunk or 0)
    )


def _state(record: Mapping[str, Any], path: Path) -> tuple[str, int]:
    from npu_rl.stack.hunks.hunk_states import HunkRecord, hunk_state

    plain = {k: v for k, v in record.items() if k != "root"}
    try:
        current = None if path.is_symlink() else read_file(path)
    except ValueError:
        current = b""  # none of its lines is there, and 64 MB of others are
    except OSError:
        current = None
    found = hunk_state(HunkRecord.from_json(plain), current)
    return found.state, found.line


def _write_stats(
    paths: WorkspacePaths,
    stats: Mapping[str, Mapping[str, file_check.Stat]],
    known: Mapping[str, Mapping[str, file_check.Stat]],
    receipt: str,
    elapsed: int,
) -> None:
    """Record `stat` results for the next verify; a read-only workspace is skipped.

    Args:
        elapsed: Nanoseconds since before the first `stat`; a file that changed since then is not recorded.
    """
    try:
        began = file_check.file_system_time(paths.hidden) - elapsed
        text = file_check.dump_stats(stats, began, receipt, margin=file_check.CACHED_NS, known=known)
        write_atomically(paths.stat, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass
