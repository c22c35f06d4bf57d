"""Sources of a lock's trees for a summary: a workspace, or the store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.store import Store
from npu_rl.workspace.folder.receipt import read_lock, read_receipt
from npu_rl.workspace.folder.setup import deliver
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.diff import git_objects

if TYPE_CHECKING:
    from npu_rl.stack.sources.git_remote import Network
    from npu_rl.stack.sources.progress import Watcher


@dataclass(frozen=True)
class StackObjects:
    """A lock, a repository with the objects of its trees, and its patch texts by SHA-256."""

    lock: Lock
    repository: Git
    texts: Mapping[str, str]

    @contextmanager
    def code_files(self) -> Iterator[Callable[[str], bytes | None]]:
        """Provide a function that reads a file of the code tree by path, and returns None for a missing one."""
        from npu_rl.stack.compose.git_trees import Trees

        trees = Trees(self.repository)

        def read(path: str) -> bytes | None:
            entry = trees.find(self.lock.tree, path)
            return None if entry is None or entry.is_tree else trees.blob(entry.oid)

        try:
            yield read
        finally:
            trees.close()


@contextmanager
def of_workspace(paths: WorkspacePaths) -> Iterator[StackObjects]:
    """Provide the objects of a workspace.

    Raises:
        LockError, WorkspaceError: If the lock or receipt can't be read, or the git folder is not there.
    """
    lock, _ = read_lock(paths)
    texts = read_receipt(paths).texts
    with _reading(git_objects(paths)) as repository:
        yield StackObjects(lock, repository, texts)


@contextmanager
def of_manifest(
    lock: Lock, manifest: Path, network: Network, watcher: Watcher, *, jobs: int
) -> Iterator[StackObjects]:
    """Provide the objects of a lock, fetched into the store and composed there, without a workspace.

    Args:
        manifest: Its file; "./" paths of the lock are relative to its folder.

    Raises:
        SourceError: If no source delivers what the lock names.
        ComposeError, PatchError: If they don't give the lock's trees.
    """
    delivered = deliver(lock, manifest, network, watcher, jobs, Store())
    composed = delivered.composed
    objects = [unit.objects for unit in (*delivered.units, composed.unit)]
    with _reading(*objects) as repository:
        yield StackObjects(lock, repository, composed.facts["texts"])


@contextmanager
def _reading(*objects: Path) -> Iterator[Git]:
    """Provide an empty repository that borrows the objects, outside the workspace, which may be read-only."""
    with tempfile.TemporaryDirectory(prefix="npu-rl-summary-") as folder:
        init_bare(Path(folder))
        yield Git(Path(folder), alternates=objects)
