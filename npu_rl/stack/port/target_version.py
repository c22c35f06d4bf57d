"""The version that patches are ported to: its ref and commit id, its name, and the tree of its taken paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError, SourceError, UsageError
from npu_rl.stack.compose.git_trees import Trees, scratch_trees, taken_tree
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import GITLINK, short
from npu_rl.stack.resolve import takes as taking
from npu_rl.stack.resolve.refs import is_full_id
from npu_rl.stack.resolve.release import sources_of
from npu_rl.stack.resolve.takes import held_paths
from npu_rl.stack.resolve.upstream_repository import Context, Upstream
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.store import Unit

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest


@dataclass(frozen=True)
class TargetRef:
    """A version of a component's repository.

    Attributes:
        ref: The full name of a tag or branch, or the commit id itself.
        id: The commit id.
    """

    ref: str
    id: str

    @property
    def version(self) -> str:
        """The name of its patchset: the tag without `v`, else the first digits of the id."""
        tag = self.ref.removeprefix("refs/tags/")
        if tag == self.ref:
            return self.id[:7]
        name = re.sub(r"[^A-Za-z0-9._+-]", "-", tag)
        return re.sub(r"^v(?=\d)", "", name).lstrip("._+-") or self.id[:7]

    @property
    def pinned(self) -> str:
        """The value of a manifest's `ref:`; for a branch, its commit, since a branch moves."""
        return self.ref if self.ref.startswith("refs/tags/") else self.id

    def __str__(self) -> str:
        return short(self.id) if self.ref == self.id else f"{self.ref.split('/', 2)[-1]} ({short(self.id)})"


def find_target(context: Context, loaded: LoadedManifest, name: str, to: str) -> tuple[Upstream, TargetRef]:
    """Return a component's upstream at a tag, branch or commit id; tags take precedence.

    Raises:
        UsageError: For a component without a repository.
        SourceError: If no source has the ref.
    """
    spec = loaded.manifest.components[name]
    if spec.ref is None:
        raise UsageError(
            f"{name} has no repository: it is taken from a package index",
            where=loaded.where("components", name),
            hint="In a manifest of your own that extends it, name the repository, and the tag of the same release:\n"
            f"components: {{{name}: {{sources: [{{git: URL}}], ref: refs/tags/TAG}}}}, then npu-rl lock.",
        )
    full = is_full_id(to) or to.startswith("refs/")
    reasons = []
    for ref in [to] if full else [f"refs/tags/{to}", f"refs/heads/{to}"]:
        moved = spec.model_copy(update={"ref": ref, "merge": [], "patches": []})
        held = held_paths(loaded.manifest, name)
        upstream = Upstream(context, name, moved, loaded.manifest.device, held, None)
        try:
            with context.store.quarantine() as folder:
                return upstream, TargetRef(ref, upstream.ids(Git(folder))[ref])
        except SourceError as error:
            reasons.append(error.why or error.what)
    hint = "Name a tag or a branch of the component, or all 40 digits of a commit id."
    raise SourceError(f"{name} has no version {to}", where="--to", why="\n".join(reasons), hint=hint)


@dataclass(frozen=True)
class DeliveredVersion:
    """The taken paths of a component at a version, without submodules.

    Attributes:
        trees: Its objects.
        lacking: The taken paths that the version does not have.
        paths: Every file of the version, taken or not.
    """

    trees: Trees
    tree: str
    lacking: list[str]
    paths: list[str]


@contextmanager
def deliver_target(upstream: Upstream, target: TargetRef) -> Iterator[DeliveredVersion]:
    """Fetch the component's taken paths at a version.

    Raises SourceError; LockError if the version has none of the taken paths.
    """
    name, spec = upstream.name, upstream.spec
    with upstream.context.store.quarantine() as folder:
        quarantine = Git(folder)
        upstream.fetch(quarantine, [target.id], contents="blob:none", depth=1)
        with Trees(quarantine) as trees:
            root = upstream.root(trees, target.id)
            parts = taking.parts_of(trees, spec, upstream.held, root)
            paths = [path for path, _ in trees.files(root)]
        wanted = [take.from_ for take in spec.take] if spec.checkout == "take" else []
        if not parts:
            raise LockError(
                f"{name} takes nothing at {target}",
                why=f"Missing paths: {', '.join(wanted)}.",
                hint="Is this a version of that component? If its folders were renamed, correct `take:` first.",
            )
        unit = _deliver(upstream, target, parts)
        with scratch_trees(upstream.context.store, [unit], [quarantine.git_dir / "objects"]) as trees:
            tree = taken_tree(trees, parts)
            tree = taking.without(trees, tree, taking.gitlinks(trees, tree))
            lacking = [path for path in wanted if path not in dict(parts)]
            yield DeliveredVersion(trees, tree, lacking, paths)


def _deliver(upstream: Upstream, target: TargetRef, parts: taking.Parts) -> Unit:
    wants = dict.fromkeys(entry.oid for _, entry in parts if entry.mode != GITLINK)
    refs = (target.ref,) if target.ref.startswith("refs/") else ()
    request = GitRequest(upstream.name, tuple(wants), (target.id,), refs)
    sources = tuple(source for source in sources_of(upstream) if not source.pypi)
    (unit,) = upstream.context.deliverer().request(request, sources, None).units
    return unit
