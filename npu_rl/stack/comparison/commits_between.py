"""The commits between two pins of a component, from one fetch of commits, as `lock` fetches them.

A count needs commits without trees (`tree:0`: about 2 MB of verl). Which commits touch what is taken needs their trees,
which come without files, and only as deep as the later pin's history reaches back to the earlier one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from npu_rl.common.errors import SourceError
from npu_rl.stack.comparison.compared_stack import ComparedComponent, ComparedStack
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.commits import commit_subjects
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import Entry, commit_tree_id
from npu_rl.stack.resolve.upstream_repository import Context, fetch_from_sources
from npu_rl.stack.sources.parallel import in_parallel

_Graph = dict[str, list[str]]  # a commit's parents


@dataclass(frozen=True)
class CommitBetween:
    """One commit."""

    id: str
    subject: str


@dataclass(frozen=True)
class CommitsBetween:
    """The commits that the later pin has and the earlier one lacks.

    Attributes:
        count: Their number; None if they were not counted.
        gone: Number of commits that only the earlier pin has; if there are any, it is not an ancestor of the later one.
        touching: The commits that change a taken path, newest first; None if they were not requested.
        why: The reason why they were not counted.
    """

    count: int | None = None
    gone: int | None = None
    touching: tuple[CommitBetween, ...] | None = None
    why: str = ""


def count_commits(
    context: Context,
    before: ComparedStack,
    after: ComparedStack,
    names: Sequence[str],
    *,
    subjects: bool,
    jobs: int,
) -> dict[str, CommitsBetween]:
    """Return the commits between the pins of some components, or why they can't be counted.

    Args:
        subjects: Whether to find the commits that touch what is taken, too.
    """
    stop = threading.Event()
    stoppable = replace(context, network=replace(context.network, stop=stop))
    tasks = {name: partial(_between, stoppable, name, (before, after), subjects=subjects) for name in names}
    return in_parallel(tasks, jobs, stop)


def _between(
    context: Context, name: str, stacks: tuple[ComparedStack, ComparedStack], *, subjects: bool
) -> CommitsBetween:
    one, other = (stack.components[name] for stack in stacks)
    if not (one.is_commit and other.is_commit and one.pin and other.pin):
        unresolved = None in (one.pin, other.pin)
        return CommitsBetween(why="a ref is not locked" if unresolved else "a release has no commits")
    sources = (*one.sources, *other.sources)
    if context.network.offline and not any(source.bundle for source in sources):
        return CommitsBetween(why="--offline does not allow network access")
    fetcher = _Fetcher(context, name, stacks)
    try:
        with ExitStack() as opened:
            history = Git(opened.enter_context(context.store.quarantine()))
            fetcher.fetch(history, [one.pin, other.pin], contents="tree:0", depth=None)
            graph = _graph(history, other.pin, one.pin)
            gone = len(_graph(history, one.pin, other.pin))
            found = CommitsBetween(len(graph), gone)
            if not subjects:
                return found
            ids: list[str] = []
            if graph:
                content = Git(opened.enter_context(context.store.quarantine()))
                fetcher.fetch(content, [other.pin], contents="blob:none", depth=_depth(graph, other.pin))
                ids = _touching(content, graph, sorted({*one.paths, *other.paths}))
            return replace(found, touching=tuple(map(CommitBetween, ids, commit_subjects(history, ids))))
    except SourceError as error:
        return CommitsBetween(why=f"{error.what}: {error.why}" if error.why else error.what)
    except GitError as error:
        return CommitsBetween(why=f"git failed: {error.why or error.what}")


@dataclass(frozen=True)
class _Fetcher:
    """Fetches commits from the sources of the later side, else from those of the earlier one."""

    context: Context
    name: str
    stacks: tuple[ComparedStack, ComparedStack]

    def fetch(self, repository: Git, commits: Sequence[str], *, contents: str, depth: int | None) -> None:
        """Fetch commits. Raises SourceError."""
        before, after = self.stacks
        try:
            self._from(after, repository, commits, contents, depth)
        except SourceError:
            if _urls(before.components[self.name]) == _urls(after.components[self.name]):
                raise
            self._from(before, repository, commits, contents, depth)

    def _from(
        self, stack: ComparedStack, repository: Git, commits: Sequence[str], contents: str, depth: int | None
    ) -> None:
        component = stack.components[self.name]
        refs = [ref for ref in (component.ref,) if ref is not None and ref.startswith("refs/")]
        context = replace(self.context, manifest_folder=stack.folder)
        fetch_from_sources(
            context, self.name, component.sources, repository, commits, refs, contents=contents, depth=depth
        )


def _urls(component: ComparedComponent) -> list[str | None]:
    return [source.git or source.bundle for source in component.sources]


def _graph(history: Git, tip: str, without: str) -> _Graph:
    """Return the commits of `tip` that `without` does not have, newest first, with their parents."""
    lines = history.text("rev-list", "--topo-order", "--parents", tip, f"^{without}", "--").splitlines()
    rows = (line.split() for line in lines)
    return {row[0]: row[1:] for row in rows}


def _depth(graph: _Graph, tip: str) -> int:
    """Return the depth for fetching the tip with every commit of the graph and its parents."""
    distance = {tip: 1}
    level = [tip]
    while level:
        below = [parent for commit in level for parent in graph.get(commit, ())]
        new = dict.fromkeys(commit for commit in below if commit not in distance)
        distance |= dict.fromkeys(new, distance[level[0]] + 1)
        level = [commit for commit in new if commit in graph]
    return max(distance.values())


def _touching(content: Git, graph: Mapping[str, Sequence[str]], paths: Sequence[str]) -> list[str]:
    """Return the commits that change a path in comparison with each of their parents, as `git log -- PATH` does."""
    with Trees(content) as trees:
        known: dict[str, list[Entry | None]] = {}

        def entries(commit: str) -> list[Entry | None]:
            if commit not in known:
                root = commit_tree_id(trees.read_object(commit)[1])
                known[commit] = [trees.find(root, path) for path in paths]
            return known[commit]

        return [
            commit
            for commit, parents in graph.items()
            if all(entries(commit) != entries(parent) for parent in parents)
            and (parents or any(entries(commit)))
        ]
