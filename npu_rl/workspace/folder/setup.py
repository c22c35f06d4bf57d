"""The command `setup`: create a workspace from a lock, completely or not at all."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npu_rl
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import HostError, WorkspaceError
from npu_rl.common.printable import counted, one_line
from npu_rl.stack.git.command import Git, git_version, init_bare
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.store import Store, Unit
from npu_rl.workspace.folder import chosen_interpreter, file_check, laid_files, swap
from npu_rl.workspace.folder.built_products import BuiltProduct, built_products, lasting_products
from npu_rl.workspace.folder.laid_files import ALTERNATES, REPOSITORY_SETTINGS, up_to_date
from npu_rl.workspace.folder.lock_summary import SetupOutcome
from npu_rl.workspace.folder.receipt import (
    FilesByRoot,
    Receipt,
    bundled_manifest,
    check_receipt,
    diff_command,
    digest_of,
    read_receipt,
)
from npu_rl.workspace.folder.workspace_lock import edit_keeper, exclusive, recover_interrupted
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, check_path, repository_name

if TYPE_CHECKING:
    from npu_rl.stack.compose.composed_unit import ComposedUnit
    from npu_rl.stack.sources.git_remote import Network
    from npu_rl.stack.sources.progress import Watcher
    from npu_rl.workspace.folder.local_edits import Edits


@dataclass(frozen=True)
class Request:
    """Options of a setup.

    Attributes:
        manifest: Its file; "./" paths of the lock are relative to its folder.
        python: The training interpreter; None for the one that the user has chosen for this workspace, if any.
        store: Where objects are taken from and composed, the user's by default.
    """

    lock: Lock
    paths: WorkspacePaths
    manifest: Path
    network: Network
    watcher: Watcher
    jobs: int = 8
    discard: bool = False
    python: str | None = None
    store: Store = field(default_factory=Store)


@dataclass(frozen=True)
class Delivered:
    """A workspace's objects in the store."""

    units: list[Unit]
    composed: ComposedUnit
    received: int
    sources: dict[str, str]


def run(request: Request, notify: Callable[[str], None]) -> SetupOutcome:
    """Set up the workspace, unless it is up to date.

    Raises:
        WorkspaceError: If it would replace local changes, which it lists; then nothing is changed.
    """
    started = time.monotonic()
    paths = request.paths
    text = lock_model.dump(request.lock)
    _check_target(paths)
    git_version()
    with disk_errors(paths.root), exclusive(paths, notify):
        recover_interrupted(paths, notify)
        if up_to_date(paths, text, request.python):  # another process was faster
            return SetupOutcome(False, seconds=time.monotonic() - started)
        delivered = deliver(
            request.lock, request.manifest, request.network, request.watcher, request.jobs, request.store
        )
        outcome = SetupOutcome(True, received=delivered.received, sources=delivered.sources)
        files = _files_by_root(delivered.composed.facts)
        if paths.is_workspace:
            _check_replaceable(request, _trees(delivered.composed.facts, request.lock), files, notify)
        staging = paths.hidden / f"staging-{os.urandom(6).hex()}"
        try:
            _stage(staging, request, delivered, files, text)
        except BaseException:
            remove_tree(staging)
            raise
        outcome.kept = swap.swap(paths, staging, edit_keeper(paths))
    outcome.seconds = time.monotonic() - started
    return outcome


def deliver(
    lock: Lock, manifest: Path, network: Network, watcher: Watcher, jobs: int, store: Store
) -> Delivered:
    """Fetch the objects of a lock into a store and compose its trees there.

    Args:
        manifest: Its file; "./" paths of the lock are relative to its folder.

    Raises:
        SourceError: If no source delivers what the lock names.
        ComposeError, PatchError: If they don't give the lock's trees.
    """
    # Only a setup that has something to do pays for these imports.
    from npu_rl.stack.compose.composed_unit import composed
    from npu_rl.stack.sources.deliver import Deliverer

    store.sweep()
    deliveries = Deliverer(store, network, watcher).deliver(lock, jobs)
    units = list(dict.fromkeys(unit for delivery in deliveries.values() for unit in delivery.units))
    return Delivered(
        units=units,
        composed=composed(store, lock, units, manifest.parent, lambda facts: _are_valid(facts, lock)),
        received=sum(delivery.received for delivery in deliveries.values()),
        sources={name: delivery.source for name, delivery in deliveries.items()},
    )


def _are_valid(facts: Mapping[str, Any], lock: Lock) -> bool:
    """Return whether a stored unit's facts are valid for a receipt, whose paths are read and ids passed to git."""
    try:
        roots = {"trees": _trees(facts, lock), "commits": _commits(facts, lock)}
        body = {**roots, "hunks": facts["hunks"], "texts": facts["texts"], "setup": {}}
        check_receipt(body, _files_by_root(facts))
        return (facts["tree"], facts["commit"]) == (lock.tree, lock.commit)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _files_by_root(facts: Mapping[str, Any]) -> FilesByRoot:
    return {root: {p: (m, i) for p, m, i in listing} for root, listing in facts["files"].items()}


def _trees(facts: Mapping[str, Any], lock: Lock) -> dict[str, str]:
    return {"code": lock.tree, **{f"src/{n}": lock.components[n].result for n in facts["src"]}}


def _commits(facts: Mapping[str, Any], lock: Lock) -> dict[str, str]:
    return {"code": lock.commit, **{f"src/{n}": commit for n, commit in facts["src"].items()}}


def _tell_of_interpreter(paths: WorkspacePaths, notify: Callable[[str], None]) -> None:
    """Print a note that the old receipt's interpreter isn't kept, unless this user chose it."""
    try:
        named = chosen_interpreter.other_interpreter(read_receipt(paths).setup)
    except WorkspaceError:
        return
    if named is not None:
        notify(
            f"note: the workspace named the interpreter {one_line(named)}, which you have not chosen and which is not "
            "kept. If you trust it, set the workspace up with --python"
        )


def _check_replaceable(
    request: Request, coming: Mapping[str, str], files: FilesByRoot, notify: Callable[[str], None]
) -> None:
    """Raise WorkspaceError for local changes that neither the new lock nor --discard covers.

    Args:
        coming: The new trees, by root.
        files: Their files.
    """
    # Only a setup that replaces a workspace pays for these imports.
    from npu_rl.workspace.folder.local_commits import are_carried
    from npu_rl.workspace.folder.local_edits import find_edits

    paths = request.paths
    found = find_edits(paths.root, files)  # with --discard, too: what can't be read stops it here
    is_lost = found.files or found.git_files or (found.history and not are_carried(paths, coming))
    if is_lost and not request.discard:
        raise _local_changes_error(paths, found, request.manifest)
    if not (request.python or chosen_interpreter.chosen_for(paths)):
        _tell_of_interpreter(paths, notify)


def _check_target(paths: WorkspacePaths) -> None:
    """Raise WorkspaceError for a path that Python can't import from, or a folder with foreign files."""
    check_path(paths.root)
    if os.path.lexists(paths.root) and not paths.root.is_dir():
        is_file = paths.root.exists()
        what = "The workspace path is a file" if is_file else "The workspace is a broken symbolic link"
        raise WorkspaceError(what, where=str(paths.root), hint="Choose another --workspace.")
    for folder in (paths.hidden, paths.kept):
        if folder.is_symlink():
            raise WorkspaceError(
                f"{folder} is a symbolic link",
                why="setup renames folders from and to it, on one file system.",
                hint="Replace the link with a folder, or set up another workspace.",
            )
    foreign = [n for n in ("code", "src", "activate") if os.path.lexists(paths.root / n)]
    # In this order, after the look: another setup that is just ending removes its journal last.
    if foreign and not paths.is_swapping and not paths.is_workspace:
        raise WorkspaceError(
            f"{paths.root} contains {' and '.join(foreign)}, which npu-rl did not create",
            hint="Choose another folder with --workspace, or move these files away.",
        )


def _local_changes_error(paths: WorkspacePaths, found: Edits, manifest: Path) -> WorkspaceError:
    named = bundled_manifest({"manifest": str(manifest)}) or shlex.quote(str(manifest))
    export = "Write your commits as patches (`npu-rl patches export`), then lock. " if found.history else ""
    return WorkspaceError(
        f"The workspace has {counted(len(found), 'local change')} that setup would replace",
        where=str(paths.root),
        why=found.shown(),
        hint=f"{export}Save them as a patch (`{diff_command(paths)}`), or move them to .npu-rl/kept with: "
        f"npu-rl setup --manifest {named} --workspace {shlex.quote(str(paths.root))} --discard",
    )


def _stage(staging: Path, request: Request, delivered: Delivered, files: FilesByRoot, text: str) -> None:
    lock = request.lock
    python = request.python or chosen_interpreter.chosen_for(request.paths)
    composed = delivered.composed
    carried = _carried_products(request, files)
    units = [*delivered.units, composed.unit]
    packed = sum(unit.size() for unit in units)
    check_room(request.paths.root, packed * 6)
    hidden = staging / ".npu-rl"
    home = hidden / "git"
    home.mkdir(parents=True)
    lay_objects(units, home)
    script = laid_files.activate_script(lock.env)
    receipt = Receipt(
        files={root: dict(listing) for root, listing in files.items()},
        trees=_trees(composed.facts, lock),
        commits=_commits(composed.facts, lock),
        hunks=composed.facts["hunks"],
        texts=composed.facts["texts"],
        setup={
            "npu_rl": npu_rl.__version__,
            "made": int(time.time()),
            "manifest": str(request.manifest),
            **({"python": python} if python else {}),
            **({"built": list(map(asdict, carried))} if carried else {}),
            "lock": lock_model.digest_of(lock),
            **laid_files.record(staging, script),
        },
    )
    stats = {laid_files.PACKS: laid_files.pack_stats(staging)}
    for root in files:
        name = repository_name(root)
        repository = lay_repository(home, name, receipt.commits[root])
        folder = staging / root
        folder.parent.mkdir(parents=True, exist_ok=True)
        lay_files(repository, receipt.trees[root], folder)
        (folder / ".git").write_text(laid_files.pointer(root))
        stats[root] = _stats(folder, files[root])
    for product in carried:
        (staging / product.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(request.paths.root / product.path, staging / product.path, follow_symlinks=False)
    (staging / "activate").write_text(script, encoding="utf-8")
    (hidden / "lock.json").write_text(text, encoding="utf-8")
    proven = receipt.dump()
    (hidden / "receipt.json").write_text(proven, encoding="utf-8")
    (hidden / "stat.json").write_text(
        file_check.dump_stats(stats, file_check.file_system_time(hidden), digest_of(proven)), encoding="utf-8"
    )
    for name in ("lock.json", "receipt.json"):
        with (hidden / name).open("rb") as file:
            os.fsync(file.fileno())


def _carried_products(request: Request, files: FilesByRoot) -> list[BuiltProduct]:
    try:
        built = built_products(read_receipt(request.paths).setup)
    except WorkspaceError:
        return []
    return lasting_products(request.paths.root, built.values(), request.lock, files)


def _stats(folder: Path, listing: Mapping[str, tuple[str, str]]) -> dict[str, file_check.Stat]:
    """Return the `stat` results of files just written by git from verified objects."""
    stats = {}
    for path in listing:
        with contextlib.suppress(FileNotFoundError):
            stats[path] = file_check.stat_of(os.lstat(f"{folder}/{path}"))
    return stats


def lay_objects(units: Sequence[Unit], git_home: Path) -> None:
    """Give the workspace its own objects: packs, which never change, are hard-linked or copied."""
    packs = git_home / "objects" / "pack"
    packs.mkdir(parents=True, exist_ok=True)
    for unit in units:
        for path in sorted((unit.objects / "pack").iterdir()):
            target = packs / path.name
            if target.exists():
                continue
            try:
                os.link(path, target)
            except OSError:
                shutil.copyfile(path, target)


def lay_repository(git_home: Path, name: str, commit: str) -> Path:
    """Create a repository under `git_home` whose branch `main` is `commit`, with the shared objects as alternate."""
    repository = git_home / name
    init_bare(repository, bare=False)
    (repository / "objects" / "info" / "alternates").write_text(ALTERNATES)
    heads = repository / "refs" / "heads"
    heads.mkdir(parents=True, exist_ok=True)
    (heads / "main").write_text(commit + "\n")
    with (repository / "config").open("a", encoding="utf-8") as config:
        config.write(REPOSITORY_SETTINGS)
    return repository


def lay_files(repository: Path, tree: str, folder: Path) -> None:
    """Write a tree's files, with an index for users of git. Raises HostError, GitError."""
    folder.mkdir(parents=True)
    here = Git(
        repository,
        work_tree=folder,
        extra={"GIT_CONFIG_PARAMETERS": "'checkout.workers=0' 'checkout.thresholdForParallelism=200'"},
    )
    try:
        here.run("read-tree", "-u", "--reset", tree)
    except GitError as error:
        if "No space left" in error.stderr or "Disk quota" in error.stderr:
            raise HostError(
                "The disk is full", where=str(folder), why=error.stderr.splitlines()[0],
                hint="Free some space, then run again. The old workspace was not changed.",
            ) from error  # fmt: skip
        raise


def check_room(folder: Path, needed: int) -> None:
    """Raise HostError, before anything is written, if the disk has less than `needed` bytes free."""
    with contextlib.suppress(FileNotFoundError, OSError):
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise HostError(
                "Not enough free disk space",
                where=str(folder),
                why=f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free.",
                hint="Free some space, or choose another folder with --workspace.",
            )
