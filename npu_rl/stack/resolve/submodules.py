"""Locking of the submodules that a manifest lists: their commits are fetched to get the tree ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import commit_tree_id, short
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.inclusion_proof import pack
from npu_rl.stack.resolve.takes import check_gitlinks
from npu_rl.stack.resolve.upstream_repository import Upstream, fetch_from_sources

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Submodule as ModuleSpec


def lock_submodules(upstream: Upstream, links: Mapping[str, str]) -> tuple[lock_model.LockedSubmodule, ...]:
    """Lock the submodules of a component.

    Notifies of a commit other than the repository's own. Raises SourceError, LockError.

    Args:
        links: Path to commit id of the gitlinks in the taken paths.
    """
    context, name = upstream.context, upstream.name
    found = tuple(_lock(upstream, path, module) for path, module in upstream.spec.submodules.items())
    check_gitlinks(name, dict(links), found)
    for module in found:
        if module.pin != links[module.path]:
            context.notify(
                f"{name}: the submodule {module.path} is at {short(links[module.path])} in the repository; "
                f"the manifest names {short(module.pin)}"
            )
    return found


def _lock(upstream: Upstream, path: str, module: ModuleSpec) -> lock_model.LockedSubmodule:
    context, name = upstream.context, f"{upstream.name}/{path}"
    with context.store.quarantine() as folder:
        repository = Git(folder)
        fetch_from_sources(
            context, name, [module.git], repository, [module.ref], (), depth=1, contents="tree:0"
        )
        try:
            data = repository.run("cat-file", "commit", module.ref).stdout
        except GitError as error:
            raise SourceError(
                f"The submodule {name} is not pinned to a commit",
                where=module.ref,
                why=error.why,
                hint="Set its `ref:` to the full id of a commit in that repository.",
            ) from error
    return lock_model.LockedSubmodule(path, module.git, module.ref, commit_tree_id(data), pack([data]))
