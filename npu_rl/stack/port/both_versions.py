"""Both versions of a port: the locked one with its patches, and the new one, each as trees of what a manifest takes."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import LockError, PatchError, SourceError, UsageError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.build_tree import base_tree, compose
from npu_rl.stack.compose.composed_unit import LARGEST_PATCH, locked_text
from npu_rl.stack.compose.git_trees import Trees, scratch_trees
from npu_rl.stack.compose.write_patch import header_of
from npu_rl.stack.git.command import Git
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedPatch
from npu_rl.stack.patches.series import SERIES
from npu_rl.stack.resolve.component import lock_component
from npu_rl.stack.resolve.refs import is_full_id
from npu_rl.stack.resolve.takes import held_paths, submodule_around
from npu_rl.stack.resolve.upstream_repository import Context, Upstream

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

_MOST_ALIKE = 3  # files of one name that are worth naming


@dataclass(frozen=True)
class OldPatch:
    """A patch of a lock: the name of its file, its header, and the component's tree after it."""

    name: str
    header: bytes
    after: str


@dataclass(frozen=True)
class BothVersions:
    """A component at its pin, and at another commit.

    Attributes:
        trees: The objects of both.
        old, new: Their trees, before the patches.
        ref: The value of a manifest's `ref:` for the new version: a tag, or its commit, since a branch moves.
        version: The name of its patchset.
        moved: Files that the manifest takes or patches change and the new version lacks, with files that may be them.
    """

    trees: Trees
    old: str
    new: str
    patches: list[OldPatch]
    ref: str
    version: str
    moved: dict[str, list[str]]


@contextmanager
def both_versions(
    context: Context, loaded: LoadedManifest, component: str, to: str
) -> Iterator[BothVersions]:
    """Provide both versions of a component; missing objects are fetched.

    Raises UsageError, LockError, SourceError, ComposeError, PatchError.
    """
    lock = lock_model.read(lock_model.lock_path(loaded.path))
    _check_lock(loaded, lock, component)
    old = lock.components[component]
    names = [PurePosixPath(patch.file.partition(":")[2] or patch.file).name for patch in old.patches]
    if len({*names}) < len(names):
        why = f"{', '.join(names)}. A port writes them into one folder."
        hint = "Rename one of them, lock again (npu-rl lock --manifest M), then port."
        raise PatchError(f"Two patches of {component} have the same file name", why=why, hint=hint)
    new, paths = _locked_at(context, loaded, component, to)
    for merge in old.merges:
        context.notify(f"note: {component} merges {merge.ref}; the patches are ported to {to} without that")
    # A patch may come from another component's files.
    origins = lock.components if any(":" in patch.file for patch in old.patches) else {component: old}
    part = replace(lock, components=origins, tree_patches=(), runtime=None)
    deliverer = context.deliverer()
    deliveries = [*deliverer.deliver(part, len(origins)).values(), deliverer.component(component, new)]
    with scratch_trees(context.store, [unit for one in deliveries for unit in one.units]) as trees:

        def text_of(patch: LockedPatch, results: dict[str, str]) -> bytes:
            return locked_text(patch, context.manifest_folder, context.store, trees, results)

        texts = compose(trees, part, text_of).texts
        patches = [
            OldPatch(name, header_of(patch.applied_text(texts[patch.sha256])), patch.tree)
            for name, patch in zip(names, old.patches, strict=True)
        ]
        before, after = assemble.merged(old), base_tree(trees, new)
        named = dict.fromkeys(
            [take.path for take in old.take] + [f for patch in old.patches for f in patch.files]
        )
        lost = [path for path in named if trees.find(before, path) and not trees.find(after, path)]
        moved = {path: _alike(path, paths) for path in lost}
        yield BothVersions(trees, before, after, patches, *_names_of(new), moved)


def _check_lock(loaded: LoadedManifest, lock: Lock, component: str) -> None:
    """Raise UsageError, LockError or PatchError if a lock differs from a manifest and its patch files."""
    name = loaded.manifest.name
    again = f"Lock again, then port: npu-rl lock --manifest {shlex.quote(str(loaded.path))}"
    if component not in lock.components or component not in loaded.manifest.components:
        known = ", ".join(loaded.manifest.components)
        raise UsageError(f"Unknown component of {name}: {component}", hint=f"Name one of these: {known}")
    if loaded.digest != lock.manifest_digest:
        raise LockError(f"{name} has changed since its lock was made", where=str(loaded.path), hint=again)
    if not lock.components[component].patches:
        raise UsageError(f"{component} of {name} has no patches", where=str(loaded.path))
    for patch in filter(lambda patch: is_local(patch.file), lock.components[component].patches):
        path = loaded.path.parent / patch.file
        if hashlib.sha256(read_if_file(path, LARGEST_PATCH) or b"").hexdigest() != patch.sha256:
            raise PatchError(f"{patch.name} was changed after the lock was made", where=str(path), hint=again)


def _locked_at(
    context: Context, loaded: LoadedManifest, name: str, to: str
) -> tuple[LockedComponent, list[str]]:
    """Lock a component at a tag, branch or commit id, without merges and patches; return every file there, too."""
    spec = loaded.manifest.components[name]
    if spec.ref is None:
        raise UsageError(
            f"{name} has no repository: it is taken from a package index",
            where=loaded.where("components", name),
            hint="In a manifest of your own that extends it, name the repository, and the tag of the same release:\n"
            f"components: {{{name}: {{sources: [{{git: URL}}], ref: refs/tags/TAG}}}}, then npu-rl lock.",
        )
    alone: dict[str, Any] = {"merge": [], "patches": [], "expect": None, "other_submodules": "skip"}
    alone["sources"] = [source for source in spec.sources if source.git]
    held = [path for path in held_paths(loaded.manifest, name) if path in spec.submodules]
    reasons = []
    for ref in [to] if is_full_id(to) or to.startswith("refs/") else [f"refs/tags/{to}", f"refs/heads/{to}"]:
        moved = spec.model_copy(update={**alone, "ref": ref})
        upstream = Upstream(context, name, moved, loaded.manifest.device, held, None)
        with context.store.quarantine() as folder:
            try:
                pin = upstream.ids(Git(folder))[ref]
            except SourceError as error:
                reasons.append(error.why or error.what)
                continue
            upstream.fetch(Git(folder), [pin], contents="blob:none", depth=1)
            with Trees(Git(folder)) as trees:
                paths = [path for path, _ in trees.files(upstream.root(trees, pin))]
        there = {".", *paths, *_folders(paths)}
        take = [one for one in spec.take if one.from_ in there or submodule_around(one.from_, spec)]
        if spec.take and not take:
            why = f"Missing paths: {', '.join(one.from_ for one in spec.take)}."
            hint = "Is this a version of that component? If its folders were renamed, correct `take:` first."
            raise LockError(f"{name} takes nothing at {to}", why=why, hint=hint)
        modules = {path: module for path, module in spec.submodules.items() if path in there}
        moved = moved.model_copy(update={"take": take, "submodules": modules})
        return lock_component(replace(upstream, spec=moved)), paths
    hint = "Name a tag or a branch of the component, or all 40 digits of a commit id."
    raise SourceError(f"{name} has no version {to}", where="--to", why="\n".join(reasons), hint=hint)


def _names_of(new: LockedComponent) -> tuple[str, str]:
    """Return the value of a manifest's `ref:`, and the name of the patchset: the tag without `v`, or the commit's."""
    ref, pin = new.ref or "", new.pin or ""
    if not ref.startswith("refs/tags/"):
        return pin, pin[:7]
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", ref.removeprefix("refs/tags/"))
    return ref, re.sub(r"^v(?=\d)", "", name).lstrip("._+-") or pin[:7]


def _folders(paths: list[str]) -> set[str]:
    return {str(folder) for path in paths for folder in PurePosixPath(path).parents}


def _alike(path: str, paths: list[str]) -> list[str]:
    """Return the files and folders of the same name, unless they are many."""
    name = PurePosixPath(path).name
    found = sorted(one for one in {*paths, *_folders(paths)} if PurePosixPath(one).name == name)
    return found if len(found) <= _MOST_ALIKE else []


def series_of(loaded: LoadedManifest, component: str) -> str:
    """Return the text of the `series` files of a component's folders, one after the other."""
    text = ""
    for entry in loaded.manifest.components[component].patches:
        if entry.from_ is None and loaded.locate(entry.path).is_dir():
            data = read_if_file(loaded.locate(entry.path) / SERIES, LARGEST_PATCH) or b""
            text += data.decode("utf-8", "replace")
            text += "" if text.endswith("\n") or not text else "\n"
        elif entry.from_ is None:
            text += f"{PurePosixPath(entry.path).name}\n"
    return text
