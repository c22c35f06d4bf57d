"""One component of a manifest, locked: its pin, what is taken, its merges. Patches come after."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.compose.build import base_tree, taken_paths
from npu_rl.compose.trees import Trees, taken_tree
from npu_rl.errors import LockError, SourceError
from npu_rl.git import Git, GitError
from npu_rl.locking.history import Brought
from npu_rl.locking.merges import merge_trees, record
from npu_rl.locking.proofs import proof
from npu_rl.locking.upstream import Context, Upstream
from npu_rl.locking.whole import whole_tree
from npu_rl.manifest import lock
from npu_rl.objects import GITLINK, SYMLINK, TREE, Entry, commit_tree_id
from npu_rl.sources.deliver import Deliverer
from npu_rl.sources.git import GitRequest, fetch_commits
from npu_rl.store import Unit

if TYPE_CHECKING:
    from npu_rl.manifest.schema import Component as Spec
    from npu_rl.manifest.schema import Merge as MergeSpec

Parts = list[tuple[str, Entry]]


def lock_component(context: Context, name: str, spec: Spec, kept: lock.Component | None) -> lock.Component:
    """The component without its patches. kept: an earlier lock of it whose ids are to stay.

    Raises SourceError, LockError, DriftError.
    """
    if spec.ref is None:
        return _release(context, name, spec, kept)
    with context.store.quarantine() as folder:
        return _repository(context, name, spec, kept, Git(folder))


# -- from git --------------------------------------------------------------------------------------------


def _repository(
    context: Context, name: str, spec: Spec, kept: lock.Component | None, here: Git
) -> lock.Component:
    upstream = Upstream(context, name, spec)
    ids = upstream.ids(here, kept)
    assert spec.ref is not None
    pin = ids[spec.ref]
    brought = upstream.brought(ids)
    sides = list(dict.fromkeys([pin, *(ids[m.ref] for m in spec.merge), *(b.merge_base for b in brought)]))
    upstream.fetch(here, sides, contents="blob:none", depth=1)
    trees = Trees(here)
    try:
        roots = {oid: commit_tree_id(trees.read_object(oid)[1]) for oid in sides}
        takes = _takes(trees, name, spec, roots[pin])
        component = lock.Component(
            sources=_sources(spec, kept),
            ref=spec.ref,
            pin=pin,
            proof=proof(trees, pin, [t.path for t in takes]),
            take=takes,
            tree=roots[pin] if spec.checkout == "full" else _taken(trees, takes),
            result="",
            checkout=spec.checkout,
            submodules=_submodules(context, name, spec),
            dist=_dist(spec),
        )
        _check_gitlinks(trees, name, component)
        parts = {oid: _parts(trees, spec, root) for oid, root in roots.items()}
        changes = [
            _split(trees, spec, roots[b.merge_base], roots[ids[m.ref]])
            for m, b in zip(spec.merge, brought, strict=True)
        ]
    finally:
        trees.close()
    units = _objects(context, name, spec, component, sides, parts)
    with _scratch(context, [*(u.objects for u in units), here.git_dir / "objects"]) as trees:
        side_trees = {oid: _modules_in(trees, taken_tree(trees, p), component) for oid, p in parts.items()}
        tree = base_tree(trees, component)
        component = replace(component, tree=tree)
        merges = []
        for m, b, (inside, outside) in zip(spec.merge, brought, changes, strict=True):
            merge = _merge(trees, name, m, b, ids, tree, side_trees)
            merges.append(replace(merge, inside=inside, outside=outside))
            tree = merge.tree
        if spec.expect is not None:
            pairs = [(roots[b.merge_base], roots[ids[m.ref]]) for m, b in zip(spec.merge, brought, strict=True)]
            whole = whole_tree(trees, roots[pin], pairs, taken_paths(component), tree)
            if whole != spec.expect:
                raise LockError(
                    f"The repository of {name} is not the expected tree after its merges",
                    why=f"Expected {spec.expect}, found {whole}.",
                    hint="A pull request may have moved since; look at it before you change `expect:`.",
                )
            component = replace(component, repository=whole)
    component = replace(component, merges=tuple(merges), result=tree)
    return replace(component, sources=_check_releases(context, name, component))


def _merge(
    trees: Trees,
    name: str,
    m: MergeSpec,
    brought: Brought,
    ids: dict[str, str],
    ours: str,
    sides: dict[str, str],
) -> lock.Merge:
    head = ids[m.ref]
    what = f"{name}, {m.how} of {m.ref}"
    base, theirs = sides[brought.merge_base], sides[head]
    result = merge_trees(trees, base, ours, theirs, what)
    return lock.Merge(
        ref=m.ref,
        how=m.how,
        head=head,
        base_ref=m.base,
        base_tip=ids[m.base],
        merge_base=brought.merge_base,
        commits=brought.commits,
        drift=brought.drift,
        inside=(),
        outside=(),
        records=record(trees, base, ours, theirs, result, what),
        tree=result,
    )


def _split(trees: Trees, spec: Spec, base: str, head: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Paths a request changes, inside and outside what is taken."""
    inside: list[str] = []
    outside: list[str] = []
    for path, _, _ in trees.changed(base, head):
        taken = spec.checkout == "full" or any(
            t.from_ == "." or path == t.from_ or path.startswith(t.from_ + "/") for t in spec.take
        )
        (inside if taken else outside).append(path)
    return tuple(inside), tuple(outside)


def _parts(trees: Trees, spec: Spec, root: str) -> Parts:
    if spec.checkout == "full":
        return [(".", Entry(TREE, root))]
    found = [(t.from_, trees.find(root, t.from_)) for t in spec.take]
    return [(path, entry) for path, entry in found if entry is not None]


def _objects(
    context: Context,
    name: str,
    spec: Spec,
    component: lock.Component,
    sides: Sequence[str],
    parts: dict[str, Parts],
) -> list[Unit]:
    """The taken content of every side of the merges; of the pin alone if there are none."""
    deliverer = Deliverer(context.store, context.network, context.beside, context.watcher)
    if len(sides) == 1:
        return list(deliverer.component(name, component).units)
    modules = deliverer.component(name, replace(component, take=(), checkout="take")).units
    wants = dict.fromkeys(entry.oid for side in sides for _, entry in parts[side])
    refs = tuple(m.ref for m in spec.merge if m.ref.startswith("refs/"))
    request = GitRequest(name, tuple(wants), tuple(sides), refs)
    from_git = tuple(s for s in component.sources if not s.pypi)
    return [*modules, *deliverer.request(request, from_git, None).units]


@contextlib.contextmanager
def _scratch(context: Context, lent: Sequence[Path]) -> Iterator[Trees]:
    with context.store.quarantine() as folder:
        trees = Trees(Git(folder, alternates=tuple(lent)))
        try:
            yield trees
        finally:
            trees.close()


# -- what is taken ---------------------------------------------------------------------------------------


def _takes(trees: Trees, name: str, spec: Spec, root: str) -> tuple[lock.Take, ...]:
    takes = []
    for take in spec.take:
        entry = trees.find(root, take.from_)
        if entry is None:
            near = ", ".join(sorted(trees.entries(root))[:20])
            raise LockError(
                f"{name} has no {take.from_} at this pin", why=f"At its root: {near}", hint="Mend `take:`."
            )
        if entry.mode == SYMLINK:
            raise LockError(f"{take.from_} of {name} is a symbolic link", hint="Take what it points to.")
        if entry.mode == GITLINK and take.from_ not in spec.submodules:
            raise LockError(
                f"{take.from_} of {name} is a submodule that the manifest does not name",
                hint="Name it under `submodules:` with its URL and commit id.",
            )
        if not entry.is_tree and take.to == ".":
            raise LockError(f"{take.from_} of {name} is a file", hint="Give it a name in `to:`.")
        takes.append(lock.Take(take.from_, take.to, entry.mode, entry.oid))
    return tuple(takes)


def _taken(trees: Trees, takes: Sequence[lock.Take]) -> str:
    return taken_tree(trees, [(t.path, t.entry) for t in takes])


def _check_gitlinks(trees: Trees, name: str, component: lock.Component) -> None:
    """Every gitlink in what is taken must be named, and every name must be one."""
    links = {path for path, entry in trees.files(component.tree) if entry.mode == GITLINK}
    named = {module.path for module in component.submodules}
    if links - named:
        raise LockError(
            f"{name} has submodules that the manifest does not name",
            why=", ".join(sorted(links - named)),
            hint="Name each under `submodules:` with its URL and commit id, or do not take that path.",
        )
    if named - links:
        raise LockError(
            f"{name} has no submodule at {', '.join(sorted(named - links))}", hint="Mend `submodules:`."
        )


def _modules_in(trees: Trees, tree: str, component: lock.Component) -> str:
    """A side of a merge with the named submodules where it has gitlinks."""
    for module in component.submodules:
        found = trees.find(tree, module.path)
        if found is not None and found.mode == GITLINK:
            tree = trees.put(tree, module.path, Entry(TREE, module.root))
    return tree


def _submodules(context: Context, name: str, spec: Spec) -> tuple[lock.Submodule, ...]:
    found = []
    for path, module in spec.submodules.items():
        with context.store.quarantine() as folder:
            repository = Git(folder)
            try:
                fetch_commits(
                    repository, module.git, [module.ref], context.network, f"{name}/{path}", context.watcher,
                    depth=1, contents="tree:0",
                )  # fmt: skip
            except GitError as error:
                raise SourceError(
                    f"The submodule {path} of {name} can't be fetched", why=error.why
                ) from error
            root = commit_tree_id(repository.run("cat-file", "commit", module.ref).stdout)
        found.append(lock.Submodule(path, module.git, module.ref, root))
    return tuple(found)


def _dist(spec: Spec) -> lock.Dist | None:
    if spec.dist is None:
        return None
    points = {group: dict(names) for group, names in spec.dist.entry_points.items()}
    return lock.Dist(spec.dist.name, spec.dist.version, points)


def _sources(spec: Spec, kept: lock.Component | None) -> tuple[lock.Source, ...]:
    """The sources as written; a release keeps the hash an earlier lock has for it."""
    hashes = {(s.pypi, s.drop): s.sha256 for s in kept.sources} if kept is not None else {}
    return tuple(
        lock.Source(
            git=s.git,
            bundle=s.bundle,
            pypi=s.pypi,
            drop=tuple(s.drop),
            sha256=hashes.get((s.pypi, tuple(s.drop))) if s.pypi else None,
        )
        for s in spec.sources
    )


# -- from PyPI -------------------------------------------------------------------------------------------


def _release(context: Context, name: str, spec: Spec, kept: lock.Component | None) -> lock.Component:
    locked, seen = [], {}
    for source in _sources(spec, kept):
        with context.store.quarantine() as folder:
            repository = Git(folder)
            done, tree = _import(context, name, source, [t.from_ for t in spec.take], repository)
            trees = Trees(repository)
            try:
                seen[tree] = _takes(trees, name, spec, tree)
                _check_gitlinks(trees, name, lock.Component((), seen[tree], tree, tree))
            finally:
                trees.close()
        locked.append(done)
    if len(seen) > 1:
        raise LockError(f"The sources of {name} give different trees", why=", ".join(seen))
    ((tree, takes),) = seen.items()
    return lock.Component(tuple(locked), takes, tree, tree, dist=_dist(spec))


def _import(
    context: Context, name: str, source: lock.Source, keep: list[str], repository: Git
) -> tuple[lock.Source, str]:
    from npu_rl.sources.sdist_unit import import_sdist

    imported = import_sdist(repository, name, source, keep, context.network, context.watcher)
    sdist = imported.sdist
    context.watcher.end(name, sdist.size)
    return replace(source, filename=sdist.filename, sha256=sdist.sha256, size=sdist.size), imported.tree


def _check_releases(context: Context, name: str, component: lock.Component) -> tuple[lock.Source, ...]:
    """Beside git, an sdist is a source only if its tree after the drops is the pin's. Raises LockError."""
    done = []
    for source in component.sources:
        if not source.pypi:
            done.append(source)
            continue
        with context.store.quarantine() as folder:
            main = Deliverer(context.store, context.network, context.beside, context.watcher).component(
                name, replace(component, sources=tuple(s for s in component.sources if not s.pypi))
            )
            repository = Git(folder, alternates=tuple(u.objects for u in main.units))
            locked, tree = _import(context, name, source, [t.path for t in component.take], repository)
            trees = Trees(repository)
            try:
                expected = _taken(trees, component.take)
                differing = list(trees.changed(expected, tree))
            finally:
                trees.close()
        if differing:
            shown = [
                f"{'only in the release' if a is None else 'differs' if b else 'not in the release'}: {p}"
                for p, a, b in differing
            ]
            raise LockError(
                f"{source.pypi} does not stand for {name} at {component.pin}",
                why="\n".join(shown[:15] + ([f"and {len(shown) - 15} more"] if len(shown) > 15 else [])),
                hint="Name generated files under `drop:` of that source, or remove the source.",
            )
        done.append(locked)
    return tuple(done)
