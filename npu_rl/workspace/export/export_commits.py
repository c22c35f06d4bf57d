"""The command `patches export`: write the commits of a workspace as patches beside its manifest, atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import LockError, ManifestError, UsageError, WorkspaceError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.patches.written_files import differing, write_files
from npu_rl.stack.sources.progress import Notify
from npu_rl.workspace.export.commit_history import ROOT, SOURCES, WorkspaceHistory, open_histories
from npu_rl.workspace.export.export_plan import ExportedPatch, ExportPlanner
from npu_rl.workspace.export.export_record import exported_files, keep_exported
from npu_rl.workspace.export.history_steps import steps_of
from npu_rl.workspace.export.manifest_entries import check_same_stack
from npu_rl.workspace.export.series_of_component import SeriesByComponent, series_by_component
from npu_rl.workspace.export.whole_checkouts import take_whole_checkouts
from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.local_edits import own_work
from npu_rl.workspace.folder.receipt import Receipt, bundled_manifest, read_lock, read_receipt
from npu_rl.workspace.folder.untracked_files import ExpectedTree, has_byte_code_name
from npu_rl.workspace.folder.workspace_lock import exclusive
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.products.built_products import built_products

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

_SHOWN = 20  # paths of a dirty tree in a message


@dataclass(frozen=True)
class CommitExport:
    """The result of an export.

    Attributes:
        patches: Every patch of the history.
        written, removed: The files that changed.
        split: Commits that gave patches to several components, with their names.
        empty: Commits that change nothing.
    """

    manifest: Path
    patches: list[ExportedPatch]
    written: list[str]
    removed: list[str]
    split: list[tuple[str, list[str]]]
    empty: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "manifest": str(self.manifest),
            "changed": bool(self.written or self.removed),
            "patches": [asdict(patch) for patch in self.patches],
            "written": self.written,
            "removed": self.removed,
            "split": [{"commit": commit, "components": names} for commit, names in self.split],
            "empty": self.empty,
        }


def manifest_of(paths: WorkspacePaths) -> str:
    """Return the manifest that a workspace was set up from, if its lock has not changed since.

    A receipt may name any path; the lock beside the manifest shows that this is the stack that it describes.

    Raises:
        UsageError: If it has to be named.
    """
    receipt = read_receipt(paths)
    named = Path(str(receipt.setup.get("manifest", "")))
    _, digest = read_lock(paths)
    try:
        beside = lock_model.lock_path(named)
        if lock_model.parse_with_digest(lock_model.read_text(beside), str(beside))[1] == digest:
            return str(named)
    except (LockError, ValueError):
        pass
    raise UsageError(
        "Unknown manifest of this workspace",
        why="The manifest of the last setup is missing here, or its lock has changed since.",
        hint="Pass it: npu-rl patches export --manifest FILE",
    )


def export_commits(paths: WorkspacePaths, loaded: LoadedManifest, notify: Notify) -> CommitExport:
    """Write the commits of `code` and `src/NAME` as patches, and list them in the manifest.

    A failure changes nothing.

    Raises:
        WorkspaceError: For a dirty tree, and for a history that is not that of setup with patches on top.
        PatchError: For a commit that can't be a patch, or that would overwrite a patch of somebody else.
        ManifestError: If the manifest is a bundled one, or can't be edited.
    """
    _check_own_manifest(loaded)
    with disk_errors(paths.root), exclusive(paths, notify):
        receipt = read_receipt(paths)
        lock, digest = read_lock(paths)
        check_same_stack(loaded, lock)
        work = list(own_work(paths.root, receipt))
        with open_histories(paths, _roots(lock, receipt, work)) as histories:
            for history in histories.values():
                _require_clean(paths, history)
            _tell_of_other_work(histories, work, notify)
            code = histories.pop(ROOT)
            series = series_by_component(code.trees, lock, steps_of(code, lock), code.commits[-1].tree)
            whole = take_whole_checkouts(lock, code, histories, series)
            exported = exported_files(paths, digest)
            planner = ExportPlanner(code.trees, loaded, lock, _locked_texts(receipt), exported, whole)
            plan = planner.plan(series)
        changes = differing(plan.files)
        written = [(path, data) for path, data in changes.items() if data is not None]
        keep_exported(paths, digest, exported, written, plan.edited)
        write_files(changes)
    return _report(loaded, plan.patches, changes, series)


def _report(
    loaded: LoadedManifest,
    patches: list[ExportedPatch],
    changes: Mapping[Path, bytes | None],
    series: SeriesByComponent,
) -> CommitExport:
    written = [str(path) for path, data in changes.items() if data is not None]
    removed = [str(path) for path, data in changes.items() if data is None]
    return CommitExport(loaded.path, patches, written, removed, series.split, series.empty)


def _check_own_manifest(loaded: LoadedManifest) -> None:
    if loaded.bundled or bundled_manifest({"manifest": str(loaded.path)}) is not None:
        name = loaded.path.stem
        raise ManifestError(
            f"{name} is a bundled manifest, which is never changed",
            hint=f"Write a manifest that extends it, and export with that (--manifest mine.yaml):\n"
            f"schema: 1\nname: mine\ntitle: {name} with my patches\nextends: {name}",
        )


def _roots(lock: Lock, receipt: Receipt, work: Sequence[str]) -> dict[str, str]:
    """Return the roots to read, with setup's commits: `code`, and full checkouts with the user's work."""
    whole = [SOURCES + name for name, component in lock.components.items() if component.checkout == "full"]
    worked_in = [root for root in whole if any(line.startswith(f"{root}: ") for line in work)]
    return {
        ROOT: lock.commit,
        **{root: receipt.commits[root] for root in worked_in if root in receipt.commits},
    }


def _require_clean(paths: WorkspacePaths, history: WorkspaceHistory) -> None:
    """Raise WorkspaceError unless every file of a root equals the last commit, regardless of git's index."""
    root, tree = history.root, history.commits[-1].tree
    files = {path: (entry.mode, entry.oid) for path, entry in history.trees.files(tree)}
    laid = ExpectedTree(files)
    products = built_products(read_receipt(paths).setup)
    drift = [
        found
        for found in file_check.examine_root(paths.root, root, files, {}).drift
        if not has_byte_code_name(found.path, laid) and not _is_empty_folder(paths.root / root / found.path)
        if f"{root}/{found.path}" not in products
    ]
    if not drift:
        return
    lines = [f"{d.kind:<10} {root}/{d.path}" for d in drift[:_SHOWN]]
    more = [f"and {len(drift) - _SHOWN} more"] if len(drift) > _SHOWN else []
    raise WorkspaceError(
        f"{root} has changes that are in no commit",
        where=str(paths.root / root),
        why="\n".join([*lines, *more]),
        hint="Commit them (git add -A, git commit), or move untracked files away.",
    )


def _is_empty_folder(path: Path) -> bool:
    """Return whether a path is an empty folder, which a commit can't contain."""
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _tell_of_other_work(
    histories: Mapping[str, WorkspaceHistory], work: Sequence[str], notify: Notify
) -> None:
    """Print a note on work outside `code` that HEAD's commits don't contain."""
    for line in work:
        root = line.partition(": ")[0]
        if root != ROOT and (root not in histories or histories[root].is_as_laid):
            notify(f"note: {line}; only commits of the current branch are exported")


def _locked_texts(receipt: Receipt) -> dict[str, bytes]:
    """Return the files of the lock's patches by the SHA-256 of their content, ignoring names in the receipt."""
    texts = [text.encode("utf-8", "surrogateescape") for text in receipt.texts.values()]
    return {hashlib.sha256(text).hexdigest(): text for text in texts}
