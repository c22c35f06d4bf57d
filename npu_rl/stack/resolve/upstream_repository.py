"""A component's git repository as `lock` reads it: refs, commits of pull requests, trees of commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError, SourceError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import commit_tree_id, short
from npu_rl.stack.lock import lock_model
from npu_rl.stack.resolve.pull_request import IncomingCommits, MergeHistory
from npu_rl.stack.resolve.refs import is_full_id, resolve
from npu_rl.stack.sources.deliver import Deliverer
from npu_rl.stack.sources.git_fetch import fetch_commits
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Notify, Watcher
from npu_rl.stack.sources.transfer_errors import Fault, NotDelivered, advice
from npu_rl.stack.store import Store

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Component as Spec


@dataclass(frozen=True)
class Context:
    """Input of locking, except the manifest; its own patches are in `manifest_folder`."""

    store: Store
    network: Network
    watcher: Watcher
    notify: Notify
    manifest_folder: Path

    def deliverer(self) -> Deliverer:
        """Return the fetcher of components and their files."""
        return Deliverer(self.store, self.network, self.watcher)

    def need_network(self, name: str) -> None:
        """Raise SourceError if the network may not be used: only sources can resolve refs."""
        if self.network.offline:
            raise SourceError(
                f"Locking {name} needs its source",
                why="--offline does not allow network access.",
                hint="Run lock without --offline. (`setup` and `verify` work offline from the lock.)",
            )


@dataclass(frozen=True)
class Upstream:
    """A component to lock, with its git sources. Methods raise SourceError, LockError.

    Attributes:
        device: The manifest's device, which decides whose requirements count.
        held: Paths that contain patches and are not taken.
        kept: Its earlier lock, if its ids are to be kept.
    """

    context: Context
    name: str
    spec: Spec
    device: str
    held: Sequence[str]
    kept: lock_model.LockedComponent | None

    def ids(self, repository: Git) -> dict[str, str]:
        """Return the commit ids of every ref of the entry, from an earlier lock if it has the same refs."""
        refs = self._refs()
        known = kept_ids(self.kept) if self.kept is not None else {}
        unknown = [ref for ref in refs if ref not in known and not is_full_id(ref)]
        ids = {ref: known.get(ref, ref) for ref in refs}
        if not unknown:
            return ids
        self.context.need_network(self.name)
        return ids | resolve(
            repository, self._urls(), unknown, self.context.network, self.name, self.context.notify
        )

    def _urls(self) -> list[str]:
        return [source.git for source in self.spec.sources if source.git]

    def _refs(self) -> list[str]:
        assert self.spec.ref is not None
        return [self.spec.ref, *(m.ref for m in self.spec.merge), *(m.base for m in self.spec.merge)]

    def incoming(self, ids: dict[str, str]) -> list[IncomingCommits]:
        """Return the commits that each merge of the entry adds, in order."""
        if not self.spec.merge:
            return []
        assert self.spec.ref is not None
        with self.context.store.quarantine() as folder:
            self.fetch(Git(folder), ids.values(), contents="tree:0")
            history = MergeHistory(Git(folder), ids[self.spec.ref], self.name)
            found = []
            for m in self.spec.merge:
                head, tip = ids[m.ref], ids[m.base]
                if m.how == "pick":
                    found.append(history.pick(m.ref, head, m.base, tip))
                else:
                    found.append(history.merge(m.ref, head, m.base, tip, allow_drift=m.drift == "allow"))
            return found

    def fetch(
        self,
        repository: Git,
        commits: Iterable[str],
        *,
        contents: str,
        depth: int | None = None,
    ) -> None:
        """Fetch commits from the first source that has all of them, with their history to a depth."""
        refs = [ref for ref in dict.fromkeys(self._refs()) if not is_full_id(ref)]
        fetch_from_sources(
            self.context, self.name, self._urls(), repository, commits, refs, contents=contents, depth=depth
        )

    def root(self, trees: Trees, oid: str) -> str:
        """Return the tree of a fetched commit. Raises LockError for an object of another type."""
        kind, data = trees.read_object(oid)
        if kind == "commit":
            return commit_tree_id(data)
        hint = "Write the id of a commit."
        if kind == "tag" and data.startswith(b"object "):
            hint = f"It is a tag of {data[7:47].decode('ascii', 'replace')}: write that id or refs/tags/..."
        raise LockError(f"{oid} of {self.name} is a {kind}, not a commit", hint=hint)


def fetch_from_sources(
    context: Context,
    name: str,
    urls: Sequence[str],
    repository: Git,
    commits: Iterable[str],
    refs: Sequence[str],
    *,
    contents: str,
    depth: int | None = None,
) -> None:
    """Fetch commits of a component from the first of its URLs that has all of them.

    Args:
        refs: Refs that contain the commits, for servers that do not serve ids.
        contents: The filter of `git_fetch.fetch_commits`.

    Raises:
        SourceError: If no source has them, with the reason for each.
    """
    context.need_network(name)
    wanted = list(dict.fromkeys(commits))
    reasons: list[str] = []
    faults: list[Fault] = []
    for url in urls:
        try:
            fetch_commits(
                repository, url, wanted, context.network, name, context.watcher, depth=depth,
                contents=contents, refs=refs,
            )  # fmt: skip
            return
        except NotDelivered as error:
            reasons.append(error.reason(url))
            faults.append(error.fault)
    raise SourceError(
        f"No source has the commits of {name}",
        where=", ".join(short(c) for c in wanted),
        why="\n".join(reasons),
        hint=advice(faults),
    )


def kept_ids(kept: lock_model.LockedComponent) -> dict[str, str]:
    """Return the ids of refs in an earlier lock."""
    ids = {m.ref: m.head for m in kept.merges} | {m.base_ref: m.base_tip for m in kept.merges}
    if kept.ref is not None and kept.pin is not None:
        ids[kept.ref] = kept.pin
    return ids
