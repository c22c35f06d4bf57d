"""Locking of one component: its pin, taken paths and merges, without its patches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError
from npu_rl.stack.compose.build_tree import base_tree, taken_paths
from npu_rl.stack.compose.git_trees import Draft, Trees, scratch_trees, taken_tree
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import EMPTY_TREE, GITLINK, is_inside
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.inclusion_proof import pack
from npu_rl.stack.resolve import takes as taking
from npu_rl.stack.resolve.declare import declare
from npu_rl.stack.resolve.merge_conflict import MergeConflict, MergedRequest, explained
from npu_rl.stack.resolve.pull_request import IncomingCommits
from npu_rl.stack.resolve.record_merge import merge_trees, record
from npu_rl.stack.resolve.release import check_releases, lock_release, sources_of
from npu_rl.stack.resolve.submodules import lock_submodules
from npu_rl.stack.resolve.upstream_repository import Upstream
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.store import Unit

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import BuildStep
    from npu_rl.stack.manifest.schema import Component as Spec
    from npu_rl.stack.manifest.schema import Merge as MergeSpec


@dataclass(frozen=True)
class _Request:
    """One merge of the manifest with its resolved commits; `base_tip` is the head of its base branch."""

    spec: MergeSpec
    head: str
    base_tip: str
    incoming: IncomingCommits

    @property
    def base(self) -> str:
        return self.incoming.merge_base


def lock_component(upstream: Upstream) -> lock_model.LockedComponent:
    """Lock a component without its patches. Raises SourceError, LockError, DriftError."""
    if upstream.spec.ref is None:
        return lock_release(upstream, _dist(upstream.spec))
    with upstream.context.store.quarantine() as folder:
        component = _from_git(upstream, Git(folder))
    return replace(component, sources=check_releases(upstream, component))


def _from_git(upstream: Upstream, quarantine: Git) -> lock_model.LockedComponent:
    name, spec = upstream.name, upstream.spec
    assert spec.ref is not None
    ids = upstream.ids(quarantine)
    pin = ids[spec.ref]
    requests = [
        _Request(m, ids[m.ref], ids[m.base], incoming)
        for m, incoming in zip(spec.merge, upstream.incoming(ids), strict=True)
    ]
    sides = list(dict.fromkeys([pin, *(r.head for r in requests), *(r.base for r in requests)]))
    upstream.fetch(quarantine, sides, contents="blob:none", depth=1)
    with Trees(quarantine) as trees:
        roots = {oid: upstream.root(trees, oid) for oid in sides}
        component = _pinned(upstream, trees, pin, roots[pin])
        parts = {oid: taking.parts_of(trees, spec, upstream.held, root) for oid, root in roots.items()}
        changes = [_split(trees, taken_paths(component), roots[r.base], roots[r.head]) for r in requests]
    units = _fetch_objects(upstream, component, parts)
    with scratch_trees(upstream.context.store, units, [quarantine.git_dir / "objects"]) as trees:
        component = declare(upstream, component, trees)
        component = replace(component, tree=base_tree(trees, component))
        side_trees = {
            oid: taking.without(
                trees,
                taking.modules_in(trees, taken_tree(trees, part), component.submodules),
                component.skipped,
            )
            for oid, part in parts.items()
        }
        merges = _merges(trees, name, component.tree, requests, side_trees, changes)
        tree = merges[-1].tree if merges else component.tree
        taking.check_merged_takes(trees, name, component.take, roots[pin], tree)
        taking.check_gitlinks(name, taking.gitlinks(trees, tree), ())
        merged_root = None
        if spec.expect is not None:
            pairs = [(roots[r.base], roots[r.head]) for r in requests]
            merged_root = merged_repository_tree(trees, roots[pin], pairs, taken_paths(component), tree)
            _check_expected_tree(name, spec.expect, merged_root)
    return replace(component, merges=merges, result=tree, repository=merged_root)


def _pinned(upstream: Upstream, trees: Trees, pin: str, root: str) -> lock_model.LockedComponent:
    """Return the component at its pin; `tree` still has gitlinks in place of submodules."""
    spec = upstream.spec
    takes = taking.look_up(trees, upstream.name, spec, root)
    held = taking.look_up_held(trees, upstream.name, upstream.held, root)
    tree = taken_tree(trees, taking.parts_of(trees, spec, upstream.held, root))
    links = taking.gitlinks(trees, tree)
    skipped = tuple(sorted(set(links) - set(spec.submodules))) if spec.other_submodules == "skip" else ()
    modules = lock_submodules(upstream, {path: oid for path, oid in links.items() if path not in skipped})
    return lock_model.LockedComponent(
        sources=sources_of(upstream),
        ref=spec.ref,
        pin=pin,
        root=root if spec.checkout == "full" else None,
        proof=proof(trees, pin, [*(t.path for t in takes), *(h.path for h in held)]),
        take=takes,
        held=held,
        tree=tree,
        result="",
        checkout=spec.checkout,
        submodules=modules,
        skipped=skipped,
        dist=_dist(spec),
        build=tuple(_build(step) for step in spec.build),
    )


def _build(step: BuildStep) -> lock_model.LockedBuild:
    return lock_model.LockedBuild(tuple(step.run), tuple(step.products), dict(step.env), step.proven)


def _dist(spec: Spec) -> lock_model.LockedDist | None:
    if spec.dist is None:
        return None
    points = {group: dict(names) for group, names in spec.dist.entry_points.items()}
    return lock_model.LockedDist(spec.dist.name, spec.dist.version, points)


# -- merges --------------------------------------------------------------------------------------------


def _merges(
    trees: Trees,
    name: str,
    tree: str,
    requests: Sequence[_Request],
    side_trees: Mapping[str, str],
    changes: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
) -> tuple[lock_model.LockedMerge, ...]:
    """Merge the requests in order, starting from `tree`, the taken paths at the pin."""
    merges: list[lock_model.LockedMerge] = []
    pinned = tree
    for r, (inside, outside) in zip(requests, changes, strict=True):
        what = f"{name}, {r.spec.how} of {r.spec.ref}"
        base, theirs = side_trees[r.base], side_trees[r.head]
        try:
            result = merge_trees(trees, base, tree, theirs, what)
        except MergeConflict as conflict:
            alone = not merges or _merges_alone(trees, base, pinned, theirs)
            about = _about(r, inside)
            earlier = [
                _about(q, paths) for q, (paths, _) in zip(requests[: len(merges)], changes, strict=False)
            ]
            raise explained(conflict, about, earlier, fits_alone=alone) from conflict
        merge = lock_model.LockedMerge(
            ref=r.spec.ref,
            how=r.spec.how,
            head=r.head,
            base_ref=r.spec.base,
            base_tip=r.base_tip,
            merge_base=r.base,
            commits=r.incoming.commits,
            older=r.incoming.older,
            drift=r.incoming.drift,
            inside=inside,
            outside=outside,
            records=record(trees, base, tree, theirs, result, what),
            tree=result,
        )
        merges.append(merge)
        tree = result
    return tuple(merges)


def _merges_alone(trees: Trees, base: str, pinned: str, theirs: str) -> bool:
    try:
        merge_trees(trees, base, pinned, theirs, "")
    except MergeConflict:
        return False
    return True


def _about(request: _Request, paths: Sequence[str]) -> MergedRequest:
    incoming = request.incoming
    count = len(incoming.commits) + incoming.older
    return MergedRequest(request.spec.ref, request.head, incoming.commits, count, paths)


def _split(
    trees: Trees, taken: Sequence[str], base: str, head: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths a request changes, inside and outside the taken paths."""
    inside: list[str] = []
    outside: list[str] = []
    for path, _, _ in trees.changed(base, head):
        (inside if is_inside(path, taken) else outside).append(path)
    return tuple(dict.fromkeys(inside)), tuple(dict.fromkeys(outside))


def _check_expected_tree(name: str, expected: str, found: str) -> None:
    if found != expected:
        raise LockError(
            f"The repository of {name} does not have the expected tree after its merges",
            why=f"Expected {expected}, found {found}.",
            hint="Review what has changed in its pull requests, then change `expect:`.",
        )


# -- objects -------------------------------------------------------------------------------------------


def _fetch_objects(
    upstream: Upstream, component: lock_model.LockedComponent, parts: Mapping[str, taking.Parts]
) -> list[Unit]:
    """Fetch the content to take from every side of the merges (`parts`, by commit), or from the pin."""
    name, deliverer = upstream.name, upstream.context.deliverer()
    if len(parts) == 1:
        return list(deliverer.component(name, component).units)
    modules = deliverer.component(name, replace(component, take=(), held=(), root=None)).units
    wants = dict.fromkeys(e.oid for part in parts.values() for _, e in part if e.mode != GITLINK)
    named = tuple(merge.ref for merge in upstream.spec.merge if merge.ref.startswith("refs/"))
    request = GitRequest(name, tuple(wants), tuple(parts), named)
    from_git = tuple(s for s in component.sources if not s.pypi)
    return [*modules, *deliverer.request(request, from_git, None).units]


def proof(trees: Trees, commit: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the inclusion proof: the commit object and the trees on the path to each taken path."""
    kind, data = trees.read_object(commit)
    assert kind == "commit", f"{commit} is a {kind}"
    root = data[5:45].decode()
    needed = [root]
    for path in paths:
        above = trees.entries_on_path(root, path.rpartition("/")[0] or ".")
        needed += [entry.oid for entry in above if entry is not None and entry.is_tree]
    unique = [oid for oid in dict.fromkeys(needed) if oid != EMPTY_TREE]
    return pack([data, *(trees.read_object(oid)[1] for oid in unique)])


def merged_repository_tree(
    trees: Trees, pin_root: str, requests: Iterable[tuple[str, str]], taken: Sequence[str], result: str
) -> str:
    """Return the repository's root tree after the merges.

    Args:
        requests: (root at the merge base, root at the head) of each merge, in order.
        taken, result: The taken paths, and the component tree after their merge.

    Raises:
        LockError: If a file outside the taken paths was changed on both sides: its merge needs its content.
    """
    root = Draft(trees, pin_root)
    for base, head in requests:
        for path, before, after in trees.changed(base, head):
            current = root.find(path)
            if current == before:
                root.put(path, after)
            elif current != after and not is_inside(path, taken):
                raise LockError(
                    f"`expect:` can't be checked: {path} was changed on both sides of a merge",
                    hint="Add that path to `take:`, or set `checkout: full`.",
                )
    if "." in taken:
        return result
    for path in taken:
        root.put(path, trees.find(result, path))
    return root.write()
