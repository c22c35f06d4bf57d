"""The patches of a manifest: gathered, applied once, and recorded with their hashes and trees."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from npu_rl.compose.build import run_patch
from npu_rl.compose.texts import MAXIMUM_SIZE
from npu_rl.compose.trees import Trees
from npu_rl.errors import LockError, PatchError
from npu_rl.manifest import lock
from npu_rl.objects import EXECUTABLE, FILE
from npu_rl.patches.series import PatchSource, read_patchset, read_patchset_text
from npu_rl.store import Store

if TYPE_CHECKING:
    from npu_rl.manifest.load import LoadedManifest
    from npu_rl.manifest.schema import PatchEntry


_PLAIN = (FILE, EXECUTABLE)


def lock_patches(
    trees: Trees,
    store: Store,
    loaded: LoadedManifest,
    entries: Sequence[PatchEntry],
    tree: str,
    component: str,
    taken: Sequence[str],
    results: Mapping[str, str],
) -> tuple[lock.Patch, ...]:
    """Apply the entries one after the other to `tree`. The last patch's `tree` is the result.

    results: component trees so far, for patches that come `from` a component.
    Raises PatchError, LockError, ManifestError.
    """
    done: list[lock.Patch] = []
    for entry in entries:
        excluded: set[str] = set()
        for source, file in _gather(trees, loaded, entry, results, component):
            _check_size(source, component)
            store.keep_file(source.data)
            patch = lock.Patch(
                name=_name(source.name, file, {p.name for p in done}),
                file=file,
                sha256=hashlib.sha256(source.data).hexdigest(),
                tree="",
                hunks=0,
                files=(),
                strip=entry.strip,
                directory=entry.directory,
                exclude=tuple(entry.exclude),
            )
            accept = entry.offset == "allow"
            parsed, applied = run_patch(trees, tree, patch, source.data, component, taken, accept=accept)
            tree = applied.tree
            files = tuple(f.path for f in parsed.files)
            excluded.update(parsed.excluded)
            done.append(
                replace(patch, tree=tree, hunks=len(parsed.hunks), files=files, offsets=applied.offsets)
            )
        _check_excludes(entry, excluded, component)
    return tuple(done)


def _name(name: str, file: str, used: Container[str]) -> str:
    """What people call the patch: its file's name, with its folder where two have the same."""
    stem = PurePosixPath(name).stem
    return stem if stem not in used else file.removeprefix("./").removesuffix(PurePosixPath(name).suffix)


def _check_size(source: PatchSource, component: str) -> None:
    if len(source.data) > MAXIMUM_SIZE:
        raise PatchError(
            f"{source.name} is too large to be a patch", where=component, why="It is over 16 MiB."
        )


def _check_excludes(entry: PatchEntry, excluded: Iterable[str], component: str) -> None:
    unused = [glob for glob in entry.exclude if not any(fnmatchcase(path, glob) for path in excluded)]
    if unused:
        raise LockError(
            f"`exclude:` of {entry.path} leaves nothing out: {', '.join(unused)}",
            where=component,
            hint="Patterns are matched with whole paths, after `strip:` and `directory:`. Mend or remove it.",
        )


def _gather(
    trees: Trees, loaded: LoadedManifest, entry: PatchEntry, results: Mapping[str, str], component: str
) -> list[tuple[PatchSource, str]]:
    if entry.from_ is not None:
        return _from_component(trees, entry, results, component)
    place = loaded.locate(entry.path)
    own = entry.path.startswith((".", "/"))
    if place.is_dir():
        found = read_patchset(place, lint=not own)
        return [(p, f"{entry.path.rstrip('/')}/{p.name}") for p in found]
    if place.is_file():
        return [(PatchSource(place.name, place, place.read_bytes()), entry.path)]
    raise LockError(
        f"There is no patch {entry.path}",
        where=component,
        hint="Paths that begin with ./ start at the manifest's folder.",
    )


def _from_component(
    trees: Trees, entry: PatchEntry, results: Mapping[str, str], component: str
) -> list[tuple[PatchSource, str]]:
    assert entry.from_ is not None
    if entry.from_ not in results:
        raise LockError(
            f"{component} takes patches from {entry.from_}, which is not above it in the manifest",
            hint=f"Put {entry.from_} before {component}.",
        )
    found = trees.find(results[entry.from_], entry.path)
    if found is None:
        raise LockError(
            f"{entry.from_} has no {entry.path} in what is taken", where=component, hint="Take that path too."
        )
    if found.mode in _PLAIN:
        name = entry.path.rpartition("/")[2]
        return [(PatchSource(name, None, trees.blob(found.oid)), f"{entry.from_}:{entry.path}")]
    if not found.is_tree:
        raise LockError(f"{entry.path} of {entry.from_} is neither a file nor a folder", where=component)
    listing = {n: trees.blob(e.oid) for n, e in trees.entries(found.oid).items() if e.mode in _PLAIN}
    patches = read_patchset_text(listing, where=f"{entry.from_}:{entry.path}")
    return [(p, f"{entry.from_}:{entry.path}/{p.name}") for p in patches]
