"""The commits between two pins of a component, by `git log` over commits that are fetched for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.lock.lock_model import Lock, LockedComponent
from npu_rl.stack.resolve.upstream_repository import Context, fetch_from_sources
from npu_rl.stack.sources.deliver import in_parallel


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

    def shown(self) -> str:
        """Return the number in words."""
        if self.count is None:
            return f"not counted: {' '.join(self.why.split())}"
        gone = f" ({self.gone} of the earlier pin are not among its ancestors)" if self.gone else ""
        return f"{self.count}{gone}"


def count_commits(
    context: Context, before: Lock, after: Lock, names: Sequence[str], *, subjects: bool, jobs: int
) -> dict[str, CommitsBetween]:
    """Return the commits between the pins of some components, or why they can't be counted.

    Args:
        subjects: Whether to find the commits that touch what is taken, too.
    """
    stop = threading.Event()
    stoppable = replace(context, network=replace(context.network, stop=stop))
    tasks = {
        name: partial(
            _between, stoppable, name, before.components[name], after.components[name], subjects=subjects
        )
        for name in names
    }
    return in_parallel(tasks, jobs, stop)


def _between(
    context: Context, name: str, before: LockedComponent, after: LockedComponent, *, subjects: bool
) -> CommitsBetween:
    if before.pin is None or after.pin is None:
        return CommitsBetween(why="a release has no commits")
    urls = list(dict.fromkeys(source.git for source in (*after.sources, *before.sources) if source.git))
    if context.network.offline:
        return CommitsBetween(why="--offline does not allow network access")
    refs = [one.ref for one in (after, before) if one.ref is not None and one.ref.startswith("refs/")]
    fetch = partial(fetch_from_sources, context, name, urls, refs=refs)
    try:
        with ExitStack() as opened:
            history = Git(opened.enter_context(context.store.quarantine()))
            fetch(repository=history, commits=[before.pin, after.pin], contents="tree:0")
            span, back = f"{before.pin}..{after.pin}", f"{after.pin}..{before.pin}"
            listed = history.text("rev-list", "--boundary", span, "--").split()
            edge = [f"^{one[1:]}" for one in listed if one.startswith("-")]
            count = len(listed) - len(edge)
            found = CommitsBetween(count, int(history.text("rev-list", "--count", back, "--")))
            if not subjects:
                return found
            lines: list[str] = []
            if count:  # path comparisons need trees, which are fetched as deep as these commits reach
                content = Git(opened.enter_context(context.store.quarantine()))
                fetch(repository=content, commits=[after.pin], contents="blob:none", depth=count + 1)
                paths = sorted({take.path for take in (*before.take, *after.take)})
                log = content.text("log", "--format=%H %s", after.pin, *edge, "--", *paths)
                lines = log.splitlines()
            return replace(found, touching=tuple(CommitBetween(*line.split(" ", 1)) for line in lines))
    except SourceError as error:
        return CommitsBetween(why=f"{error.what}: {error.why}" if error.why else error.what)
    except GitError as error:
        return CommitsBetween(why=f"git failed: {error.why or error.what}")
