"""Both versions of a port: the locked one with its patches, and the new one, each as trees of what a manifest takes."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import LockError, PatchError, SourceError, UsageError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose import assemble
from npu_rl.stack.compose.build_tree import base_tree, compose
from npu_rl.stack.compose.git_trees import Trees, scratch_trees
from npu_rl.stack.compose.patch_texts import MAXIMUM_SIZE, locked_text
from npu_rl.stack.compose.write_patch import header_of
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import short
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock, LockedComponent
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
        hint = "A port writes them into one folder. Rename one, lock again (npu-rl lock --manifest M), then port."
        raise PatchError(
            f"Two patches of {component} have the same file name", why=", ".join(names), hint=hint
        )
    new, paths = _locked_at(context, loaded, component, to)
    context.notify(
        f"{component}: patches from {short(old.pin or '')} to {to} ({short(new.pin or '')}): {len(names)}"
    )
    if old.merges:
        merged = ", ".join(merge.ref for merge in old.merges)
        context.notify(f"note: {component} merges {merged}; the patches are ported to {to} without that")
    # A patch may come from another component's files.
    origins = lock.components if any(":" in patch.file for patch in old.patches) else {component: old}
    parts = [
        replace(lock, components=one, tree_patches=(), runtime=None) for one in (origins, {component: new})
    ]
    deliveries = [context.deliverer().deliver(part, len(part.components)) for part in parts]
    units = [unit for delivered in deliveries for one in delivered.values() for unit in one.units]
    with scratch_trees(context.store, units) as trees:
        texts = compose(
            trees,
            parts[0],
            lambda patch, results: locked_text(patch, context.manifest_folder, context.store, trees, results),
        ).texts
        headers = [header_of(patch.applied_text(texts[patch.sha256])) for patch in old.patches]
        named = zip(names, headers, old.patches, strict=True)
        tree = base_tree(trees, new)
        changed = {file for patch in old.patches for file in patch.files}
        wanted = [*(take.path for take in old.take), *sorted(changed)]
        lost = [path for path in wanted if path != "." and trees.find(tree, path) is None]
        is_tag = (new.ref or "").startswith("refs/tags/")
        yield BothVersions(
            trees,
            assemble.merged(old),
            tree,
            [OldPatch(name, header, patch.tree) for name, header, patch in named],
            (new.ref if is_tag else new.pin) or "",
            _version(new),
            {
                path: _alike(path, paths)
                for path in lost
                if trees.find(assemble.merged(old), path) is not None
            },
        )


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
    for patch in lock.components[component].patches:
        path = loaded.path.parent / patch.file
        if (
            is_local(patch.file)
            and hashlib.sha256(read_if_file(path, MAXIMUM_SIZE) or b"").hexdigest() != patch.sha256
        ):
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
    moved = spec.model_copy(
        update={
            "merge": [],
            "patches": [],
            "expect": None,
            "sources": [one for one in spec.sources if one.git],
        }
    )
    held = [path for path in held_paths(loaded.manifest, name) if path in spec.submodules]
    upstream = Upstream(context, name, moved, loaded.manifest.device, held, None)
    reasons = []
    for ref in [to] if is_full_id(to) or to.startswith("refs/") else [f"refs/tags/{to}", f"refs/heads/{to}"]:
        upstream = replace(upstream, spec=moved.model_copy(update={"ref": ref}))
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
        kept = {
            "take": [one for one in spec.take if one.from_ in there or submodule_around(one.from_, spec)],
            "submodules": {path: module for path, module in spec.submodules.items() if path in there},
        }
        if spec.take and not kept["take"]:
            wanted = ", ".join(one.from_ for one in spec.take)
            hint = "Is this a version of that component? If its folders were renamed, correct `take:` first."
            raise LockError(f"{name} takes nothing at {to}", why=f"Missing paths: {wanted}.", hint=hint)
        return lock_component(replace(upstream, spec=upstream.spec.model_copy(update=kept))), paths
    hint = "Name a tag or a branch of the component, or all 40 digits of a commit id."
    raise SourceError(f"{name} has no version {to}", where="--to", why="\n".join(reasons), hint=hint)


def _version(new: LockedComponent) -> str:
    """Return the name of a version's patchset: the tag without `v`, else the first digits of the id."""
    ref, pin = new.ref or "", (new.pin or "")[:7]
    if not ref.startswith("refs/tags/"):
        return pin
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", ref.removeprefix("refs/tags/"))
    return re.sub(r"^v(?=\d)", "", name).lstrip("._+-") or pin


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
            data = read_if_file(loaded.locate(entry.path) / SERIES, MAXIMUM_SIZE) or b""
            text += data.decode("utf-8", "replace")
            text += "" if text.endswith("\n") or not text else "\n"
        elif entry.from_ is None:
            text += f"{PurePosixPath(entry.path).name}\n"
    return text
