"""The command `patches export`: write the commits of a workspace as patches beside its manifest, all or none."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import LockError, ManifestError, UsageError, WorkspaceError
from npu_rl.common.user_state import keep_facts, kept_facts
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.patches.written_files import differing, write_files
from npu_rl.workspace.export.commit_history import ROOT, SOURCES, open_histories
from npu_rl.workspace.export.patch_folder import (
    PatchFolder,
    check_droppable,
    digest,
    manifest_lines,
    patch_folder,
    planned_files,
)
from npu_rl.workspace.export.patch_writer import patch_text
from npu_rl.workspace.export.series_of_component import SplitCommit, series_by_component
from npu_rl.workspace.folder.built_products import built_products
from npu_rl.workspace.folder.receipt import Receipt, bundled_manifest, read_lock, read_receipt
from npu_rl.workspace.folder.workspace_lock import exclusive
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.sources.progress import Notify

_RECORD = "export", "workspace"  # of the files that exports have written, in the user's state folder


@dataclass(frozen=True)
class ExportedPatch:
    """One patch of an export.

    Attributes:
        path: Relative to the manifest's folder; of a dropped one, as the lock has it.
        commit, subject: Empty of a dropped one.
        state: new, changed, unchanged or dropped.
    """

    component: str
    path: str
    commit: str
    subject: str
    state: str


@dataclass
class CommitExport:
    """The result of an export.

    Attributes:
        patches: Every patch in a folder that is written.
        written, removed: The files that changed.
        lines: What the manifest has to say, in YAML; empty if it does.
        split: Commits that gave patches to several components.
        empty: Commits that change nothing.
    """

    manifest: str
    patches: list[ExportedPatch] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    lines: str = ""
    split: list[SplitCommit] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def manifest_of(paths: WorkspacePaths) -> str:
    """Return the manifest that a workspace was set up from, if its lock has not changed since.

    A receipt may name any path; the lock beside the manifest shows that this is the stack that it describes.

    Raises:
        UsageError: If it has to be named.
    """
    receipt = read_receipt(paths)
    named = Path(str(receipt.setup.get("manifest", "")))
    _, locked = read_lock(paths)
    try:
        beside = lock_model.lock_path(named)
        if lock_model.parse_with_digest(lock_model.read_text(beside), str(beside))[1] == locked:
            return str(named)
    except (LockError, ValueError):
        pass
    raise UsageError(
        "Unknown manifest of this workspace",
        why="The manifest of the last setup is missing here, or its lock has changed since.",
        hint="Pass it: npu-rl patches export --manifest FILE",
    )


def export_commits(paths: WorkspacePaths, loaded: LoadedManifest, notify: Notify) -> CommitExport:
    """Write the commits of `code` and `src/NAME` as patches into one folder per component, beside the manifest.

    A failure changes nothing.

    Raises:
        WorkspaceError: For changes that are in no commit, and a history that is not setup's with patches on top.
        PatchError: For a commit that can't be a patch, and a file that neither the lock nor an export has written.
        ManifestError: If the manifest is a bundled one.
    """
    _check_own_manifest(loaded)
    report = CommitExport(str(loaded.path))
    with disk_errors(paths.root), exclusive(paths, notify):
        receipt = read_receipt(paths)
        lock, locked = read_lock(paths)
        _check_same_stack(loaded, lock)
        texts = {
            digest(text): text
            for text in (t.encode("utf-8", "surrogateescape") for t in receipt.texts.values())
        }
        exported = _exported(paths, locked)
        files: dict[Path, bytes | None] = {}
        with open_histories(paths, _roots(lock, receipt), built_products(receipt.setup)) as histories:
            code = histories.pop(ROOT)
            checkouts = {root: history for root, history in histories.items() if not history.is_as_laid}
            series = series_by_component(lock, code, checkouts)
            folders = [patch_folder(code.trees, loaded, lock, texts, *row) for row in series.patches.items()]
            for folder in folders:
                if SOURCES + folder.component not in checkouts:
                    check_droppable(folder, lock)
                written = _texts(code.trees, folder, texts, report)
                if written or folder.is_listed:
                    place = loaded.path.parent / folder.path
                    files |= planned_files(place, written, {*texts, *exported})
        changes = differing(files)
        new = [(path, data) for path, data in changes.items() if data is not None]
        _keep_exported(paths, locked, {*exported, *(digest(data) for _, data in new)})
        write_files(changes)
    report.lines, report.split, report.empty = manifest_lines(folders), series.split, series.empty
    report.written = [str(path) for path, _ in new]
    report.removed = [str(path) for path, data in changes.items() if data is None]
    return report


def _texts(
    trees: Trees, folder: PatchFolder, locked: Mapping[str, bytes], report: CommitExport
) -> dict[str, bytes]:
    """Return the texts of a folder's patches by their names, and report each. Raises PatchError."""
    texts: dict[str, bytes] = {}
    for name, patch in folder.patches.items():
        file, digested = (patch.locked.file, patch.locked.sha256) if patch.locked else ("", "")
        in_place = file == f"{folder.path}/{name}"
        texts[name] = patch_text(trees, patch, locked, folder.options[name], in_place=in_place)
        state = "new" if not file else "unchanged" if digest(texts[name]) == digested else "changed"
        path, commit = f"{folder.path.removeprefix('./')}/{name}", patch.step.commit
        report.patches.append(ExportedPatch(folder.component, path, commit.id, commit.subject, state))
    report.patches += [ExportedPatch(folder.component, one.file, "", "", "dropped") for one in folder.dropped]
    return texts


def _check_own_manifest(loaded: LoadedManifest) -> None:
    if loaded.bundled or bundled_manifest({"manifest": str(loaded.path)}) is not None:
        name = loaded.path.stem
        raise ManifestError(
            f"{name} is a bundled manifest, which is never changed",
            hint=f"Write a manifest that extends it, and export with that (--manifest mine.yaml):\n"
            f"schema: 1\nname: mine\ntitle: {name} with my patches\nextends: {name}",
        )


def _check_same_stack(loaded: LoadedManifest, lock: Lock) -> None:
    """Raise WorkspaceError unless a manifest still describes a lock's stack, not counting patches."""
    asked = {
        name: (spec.ref, [merge.ref for merge in spec.merge], [(take.from_, take.to) for take in spec.take])
        for name, spec in loaded.manifest.components.items()
    }
    laid = {
        name: (one.ref, [merge.ref for merge in one.merges], [(take.path, take.to) for take in one.take])
        for name, one in lock.components.items()
    }
    differing = [name for name in sorted({*asked, *laid}) if asked.get(name) != laid.get(name)]
    if differing:
        raise WorkspaceError(
            f"{loaded.path.name} has changed since the workspace was set up",
            where=str(loaded.path),
            why=f"`ref:`, `merge:` or `take:` of {', '.join(differing)}",
            hint="Run npu-rl lock and npu-rl setup again before you export.",
        )


def _roots(lock: Lock, receipt: Receipt) -> dict[str, str]:
    """Return the roots to read, with setup's commits: `code` and full checkouts."""
    whole = [SOURCES + name for name, component in lock.components.items() if component.checkout == "full"]
    return {ROOT: lock.commit, **{root: receipt.commits[root] for root in whole if root in receipt.commits}}


def _exported(paths: WorkspacePaths, locked: str) -> Collection[str]:
    """Return the SHA-256 of the files that exports have written for a workspace with this lock."""
    kept = kept_facts(*_RECORD, paths.root) or {}
    return frozenset(map(str, kept.get("files", ()))) if kept.get("lock") == locked else frozenset()


def _keep_exported(paths: WorkspacePaths, locked: str, digests: Collection[str]) -> None:
    """Record the files about to be written, so that a killed export can be run again."""
    with contextlib.suppress(
        OSError, ValueError
    ):  # without a HOME each export takes them for somebody else's
        keep_facts(*_RECORD, paths.root, {"lock": locked, "files": sorted(digests)})
