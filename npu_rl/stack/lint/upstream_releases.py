"""Search for the releases of a component whose file is a given blob, in its tags fetched without files.

All tags of vLLM, Megatron-LM, vllm-ascend or verl are at most 1.2 MB of commits and trees, from one request.
"""

from __future__ import annotations

import re
from contextlib import ExitStack

from npu_rl.common.errors import NpuRlError, SourceError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import commit_tree_id
from npu_rl.stack.lock.lock_model import LockedComponent
from npu_rl.stack.resolve.upstream_repository import Context, fetch_from_sources
from npu_rl.stack.sources.git_remote import ls_tags

_MOST = 500  # tags of one component; the highest numbers
_TIME = re.compile(rb"^committer .* ([0-9]+) [+-][0-9]{4}$", re.MULTILINE)


class UpstreamReleases:
    """The tags of a component, fetched on demand. Close it after use."""

    def __init__(self, context: Context, name: str, component: LockedComponent) -> None:
        self._context, self._name, self._component = context, name, component
        self._opened = ExitStack()
        self._trees: Trees | None = None
        self._roots: list[tuple[str, str]] | None = None  # each tag with its tree, newest first

    def close(self) -> None:
        """Remove what was fetched."""
        self._opened.close()

    def having(self, path: str, blob: str) -> list[str]:
        """Return the tags where a file is this blob, newest first. The id may be abbreviated."""
        if self._roots is None:
            self._roots = self._fetched()
        found = []
        for tag, root in self._roots:
            assert self._trees is not None
            entry = self._trees.find(root, path)
            if entry is not None and entry.oid.startswith(blob):
                found.append(tag)
        return found

    def _fetched(self) -> list[tuple[str, str]]:
        """Fetch the tags. Notifies if no source delivers them."""
        try:
            repository = Git(self._opened.enter_context(self._context.store.quarantine()))
            tags = self._tags(repository)
            if not tags:
                return []
            fetch_from_sources(
                self._context, self._name, self._component.sources, repository, tags.values(), (),
                contents="blob:none", depth=1,
            )  # fmt: skip
            self._trees = self._opened.enter_context(Trees(repository))
            return _newest_first(self._trees, tags)
        except (SourceError, GitError) as error:
            self._tell(error)
            return []

    def _tags(self, repository: Git) -> dict[str, str]:
        """Return the tags of the first source that can be read, with their commits."""
        urls = [source.git for source in self._component.sources if source.git]
        for number, url in enumerate(urls, 1):
            try:
                tags = ls_tags(repository, url, self._context.network, self._name)
            except SourceError:
                if number == len(urls):
                    raise
            else:
                return dict(sorted(tags.items(), key=lambda item: _numbers(item[0]))[-_MOST:])
        return {}

    def _tell(self, error: NpuRlError) -> None:
        self._context.notify(
            f"note: {self._name}: no release is named, since its tags can't be fetched: {error.why or error.what}"
        )


def _numbers(tag: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", tag)]


def _newest_first(trees: Trees, tags: dict[str, str]) -> list[tuple[str, str]]:
    dated = []
    for tag, oid in tags.items():
        kind, data = trees.read_object(oid)
        if kind == "commit":  # a tag may name anything
            time = _TIME.search(data.partition(b"\n\n")[0])
            dated.append((int(time[1]) if time else 0, tag, commit_tree_id(data)))
    return [(tag, root) for _, tag, root in sorted(dated, reverse=True)]
